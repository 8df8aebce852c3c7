//go:build cgo

package worker

import (
	"fmt"

	"tendril/forwarding/clwire"
	"tendril/forwarding/worker/engine"
)

// row is what the worker does with one type of record, and when it may come.
type row struct {
	handle func(*session, clwire.Header, []byte) error
	first  bool // before Hello
	lanes  bool // from a client of another machine alone: others have segments

	// quick: a driver takes the command without waiting while it has few others: launches, copies on the device, and
	// transfers from and to memory that is pinned or that the driver copies at once (InlineBytes is below what NVIDIA's
	// takes so). Measured there: a 4-byte write through the lane 98 µs, past it 9.
	quick bool
}

// rowCount is above the number of each record that a client sends.
const rowCount = 256

// rows are the records that a worker takes.
var rows = [rowCount]row{
	clwire.TypeHello:       {handle: on((*session).hello), first: true},
	clwire.TypeTimeLimits:  {handle: alone((*session).limit)},
	clwire.TypeTakesPacked: {handle: alone((*session).takesPacked)},
	clwire.TypeRelease: {handle: alone(func(s *session, m *clwire.Release) error {
		s.release(m.ID)
		return nil
	})},
	clwire.TypeAddSegment:     {handle: alone((*session).addSegment)},
	clwire.TypeProtectSegment: {handle: on((*session).protectSegment)},
	clwire.TypeDropSegment: {handle: alone(func(s *session, m *clwire.DropSegment) error {
		return s.dropSegment(m.ID)
	})},
	clwire.TypeBlob: {handle: alone((*session).blob)},

	clwire.TypeCreateContext:    {handle: on((*session).createContext)},
	clwire.TypeCreateQueue:      {handle: on((*session).createQueue)},
	clwire.TypeCreateBuffer:     {handle: on((*session).createBuffer)},
	clwire.TypeCreateSVM:        {handle: on((*session).createSVM)},
	clwire.TypeSVMPointers:      {handle: alone((*session).svmPointers)},
	clwire.TypeCreateImage:      {handle: on((*session).createImage)},
	clwire.TypeCreateSampler:    {handle: on((*session).createSampler)},
	clwire.TypeImageFormats:     {handle: on((*session).imageFormats)},
	clwire.TypeContentSize:      {handle: alone((*session).contentSize)},
	clwire.TypeCreateSubDevices: {handle: on((*session).createSubDevices)},
	clwire.TypeReleaseSubDevice: {handle: alone((*session).releaseSubDevice)},

	clwire.TypeCreateProgram:  {handle: on((*session).createProgram)},
	clwire.TypeBuildProgram:   {handle: on((*session).build)},
	clwire.TypeCompileProgram: {handle: on((*session).compileProgram)},
	clwire.TypeLinkProgram:    {handle: on((*session).linkProgram)},
	clwire.TypeFiles:          {handle: on((*session).filesRecord)},
	clwire.TypeFileData:       {handle: alone((*session).fileData)},
	clwire.TypeSpecConstant:   {handle: on((*session).specConstant)},
	clwire.TypeCreateKernel:   {handle: on((*session).createKernel)},
	clwire.TypeSetArg:         {handle: on((*session).setArg)},
	clwire.TypeQuery:          {handle: on((*session).query)},

	clwire.TypeNDRange:          {handle: reused((*session).ndrange), quick: true},
	clwire.TypeCopy:             {handle: on(task((*session).copyTask)), quick: true},
	clwire.TypeCopyRect:         {handle: on(task((*session).copyRectTask))},
	clwire.TypeFill:             {handle: on(task((*session).fillTask)), quick: true},
	clwire.TypeWriteInline:      {handle: reused((*session).writeInline), quick: true},
	clwire.TypeTransfer:         {handle: reused(task((*session).transferTask)), quick: true},
	clwire.TypeCopyImage:        {handle: on(task((*session).copyImageTask)), quick: true},
	clwire.TypeCopyImageBuffer:  {handle: on(task((*session).copyImageBufferTask)), quick: true},
	clwire.TypeFillImage:        {handle: on(task((*session).fillImageTask)), quick: true},
	clwire.TypeWriteImageInline: {handle: on(task((*session).writeImageTask)), quick: true},
	clwire.TypeGraph:            {handle: alone((*session).defineGraph)},
	clwire.TypeReplay:           {handle: on((*session).replay)},

	clwire.TypeBulkWrite: {handle: on((*session).bulkWrite), lanes: true},
	clwire.TypeBulkRead:  {handle: on((*session).bulkRead), lanes: true, quick: true},
	clwire.TypeBulkBytes: {handle: alone(func(s *session, m *clwire.BulkBytes) error { return s.bulk.take(m) }),
		lanes: true},

	clwire.TypeHost: {handle: on(func(s *session, h clwire.Header, m *clwire.Host) error {
		return s.enqueue(h, engine.KindHost, &m.Cmd, nil, nil, m.Op)
	})},
	clwire.TypeMarker: {handle: on(func(s *session, h clwire.Header, m *clwire.Marker) error {
		return s.enqueue(h, engine.KindMarker, &m.Cmd, nil, nil, 0)
	})},
	clwire.TypeBarrier: {handle: on(func(s *session, h clwire.Header, m *clwire.Barrier) error {
		return s.enqueue(h, engine.KindBarrier, &m.Cmd, nil, nil, 0)
	})},
	clwire.TypeHostDone:  {handle: alone((*session).endHost)},
	clwire.TypeUserEvent: {handle: alone((*session).userEvent)},
	clwire.TypeSetUserEvent: {handle: alone(func(s *session, m *clwire.SetUserEvent) error {
		return s.engine.SetUserEvent(m.ID, m.Status)
	})},
	clwire.TypeFlush: {handle: alone(func(s *session, m *clwire.Flush) error { return s.engine.Flush(m.Queue) })},
	clwire.TypeFinish: {handle: on(func(s *session, h clwire.Header, m *clwire.Finish) error {
		return s.engine.Finish(m.Queue, h.Request)
	})},
	clwire.TypeWait: {handle: reused(func(s *session, h clwire.Header, m *clwire.Wait) error {
		return s.engine.Wait(m.Events, h.Request)
	})},
	clwire.TypeWatch: {handle: alone(func(s *session, m *clwire.Watch) error {
		return s.engine.Watch(m.Event, m.Level)
	})},

	clwire.TypeClockSync:  {handle: on((*session).clockSync)},
	clwire.TypeTraceOn:    {handle: alone((*session).startTracer)},
	clwire.TypeTraceFlush: {handle: on((*session).traceFlush)},

	clwire.TypePeerOpen: {handle: on(func(s *session, h clwire.Header, _ *clwire.PeerOpen) error {
		return s.peers.open(h)
	})},
	clwire.TypePeerExpect: {handle: alone(func(s *session, m *clwire.PeerExpect) error { return s.peers.expect(m) })},
	clwire.TypePeerPush:   {handle: alone(func(s *session, m *clwire.PeerPush) error { return s.peers.push(m) })},
	clwire.TypePeerPull:   {handle: alone(func(s *session, m *clwire.PeerPull) error { return s.peers.pull(m) })},
	clwire.TypePeerSignal: {handle: alone(func(s *session, m *clwire.PeerSignal) error { return s.peers.signal(m) })},
	clwire.TypePeerEvent:  {handle: alone(func(s *session, m *clwire.PeerEvent) error { return s.peers.event(m) })},
	clwire.TypePeerClose:  {handle: alone(func(s *session, m *clwire.PeerClose) error { return s.peers.end(m) })},
}

// message is what P is of a message M.
type message[M any] interface {
	*M
	clwire.Message
}

// on decodes a record for do. The session has one message of each type, which the next record of that type fills: do
// may keep its slices, but not the message.
func on[M any, P message[M]](do func(*session, clwire.Header, P) error) func(*session, clwire.Header, []byte) error {
	return reused(func(s *session, h clwire.Header, m P) error {
		err := do(s, h, m)
		*m = *new(M)
		return err
	})
}

// reused is on for what comes most often: do keeps no slice of the message either, the next record decodes into them.
func reused[M any, P message[M]](do func(*session, clwire.Header, P) error,
) func(*session, clwire.Header, []byte) error {
	return func(s *session, h clwire.Header, payload []byte) error {
		m, ok := s.messages[h.Type].(P)
		if !ok {
			m = new(M)
			s.messages[h.Type] = m
		}
		if err := m.Decode(payload); err != nil {
			return err
		}
		return do(s, h, m)
	}
}

// alone is on for what needs no header.
func alone[M any, P message[M]](do func(*session, P) error) func(*session, clwire.Header, []byte) error {
	return on(func(s *session, _ clwire.Header, m P) error { return do(s, m) })
}

// enqueued is a message that begins with a Cmd.
type enqueued[M any] interface {
	message[M]
	Head() *clwire.Cmd
}

// task hands the engine the task that of makes of a command.
func task[M any, P enqueued[M]](of func(*session, P) (*memTask, error)) func(*session, clwire.Header, P) error {
	return func(s *session, h clwire.Header, m P) error {
		t, err := of(s, m)
		if err != nil {
			return err
		}
		return s.enqueue(h, engine.KindTask, m.Head(), t, nil, 0)
	}
}

// execute carries one record out. An error ends the session.
func (s *session) execute(h clwire.Header, payload []byte) error {
	if h.Type >= rowCount || s.rows[h.Type].handle == nil {
		return fmt.Errorf("%w: unknown type %d", errRecord, uint16(h.Type))
	}
	switch row := &s.rows[h.Type]; {
	case !s.greeted && !row.first:
		return fmt.Errorf("%w: the first record must be Hello", errRecord)
	case row.lanes && s.bulk == nil:
		return fmt.Errorf("%w: a client on this node has segments", errRecord)
	case h.Type != clwire.TypeWriteInline && s.small.buffer != nil:
		s.journal.Doing(uint32(clwire.TypeWriteInline)) // a driver that hangs in it hangs in the write
		if err := s.sendGathered(); err != nil {
			return err
		}
		s.journal.Doing(uint32(h.Type))
		return row.handle(s, h, payload)
	default:
		return row.handle(s, h, payload)
	}
}
