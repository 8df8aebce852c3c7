package conn

import "tendril/forwarding/clwire"

// Sink is told what a worker says of its client's objects, by number.
//
// Ended, Fault, PeerState, Pushed and Print are called with the reader's lock held, in the order of the worker's
// records. They must not wait, nor call what waits for a reply. Notice and Lost may come from any goroutine; a record
// that was being dispatched may reach the Sink beside Lost or after it.
type Sink interface {
	// Ended says how an event ended, or (Status > 0) which level a watched one reached. known: there is such an event.
	Ended(end *clwire.EventEnd) (known bool)
	// Fault reports a failure that no event carries.
	Fault(m *clwire.Fault)
	// PeerState says what became of a link to another worker. An error ends this worker.
	PeerState(m *clwire.PeerState) error
	// Pushed says that a push from another worker, which will end an event here, brought no more than its first bytes.
	Pushed(event, bytes uint64)
	// Print passes on what kernels print. data is valid during the call.
	Print(data []byte)
	// Notice is a line for the contexts' callbacks: the connection was lost, or is back.
	Notice(line string)
	// Lost is called once, when the worker is gone. Requests and operations have failed by then; the events are the
	// Sink's to fail. closed: this side ended the worker.
	Lost(cause error, closed bool)
}
