package daemon

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
)

// The handover's messages: the first byte of a packet; a text or nothing follows, and descriptors go beside.
const (
	handoverHello    byte = 'H' // successor: its state directory
	handoverRefused  byte = 'X' // predecessor: why not
	handoverFixtures byte = 'F' // state lock, socket, its lock, catalog
	handoverSegments byte = 'S' // at most handoverFDs
	handoverDevices  byte = 'D' // as many
	handoverAck      byte = 'A'
	handoverEnd      byte = 'E'
	handoverReady    byte = 'R'
	handoverGo       byte = 'G'
	handoverServing  byte = 'V'
)

const (
	handoverFDs  = 128 // of one message; the kernel's limit is 253 (SCM_MAX_FD, unix(7))
	handoverText = 4096
)

// handoverLink is one end of the socket pair between two daemons (SOCK_SEQPACKET, unix(7)). One goroutine may use it;
// anyone may interrupt it.
type handoverLink struct{ conn *net.UnixConn }

// newHandoverPair makes both ends, the other one as a file to be sent.
func newHandoverPair() (*handoverLink, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "handover")
	mine, err := newHandoverLink(fds[0])
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return mine, theirs, nil
}

// newHandoverLink takes the descriptor over.
func newHandoverLink(fd int) (*handoverLink, error) {
	f := os.NewFile(uintptr(fd), "handover")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("socket of the handover: %w", err)
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("%w: the handover's socket is a %T", object.ErrProtocol, conn)
	}
	return &handoverLink{u}, nil
}

// Close ends the link; the other end sees that. A second Close does nothing.
func (l *handoverLink) Close() { l.conn.Close() }

// interrupt makes what waits fail.
func (l *handoverLink) interrupt() { l.conn.SetDeadline(time.Unix(1, 0)) }

// send sends one message. The descriptors stay the caller's.
func (l *handoverLink) send(kind byte, text []byte, fds ...int) error {
	_, _, err := l.conn.WriteMsgUnix(append([]byte{kind}, text...), unix.UnixRights(fds...), nil)
	return err
}

// receive waits for one message; the caller owns its descriptors. io.EOF: the other end is gone.
func (l *handoverLink) receive(limit time.Duration) (kind byte, text []byte, fds []int, err error) {
	if err := l.conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return 0, nil, nil, err
	}
	b, control := make([]byte, 1+handoverText), make([]byte, unix.CmsgSpace(4*253))
	n, nc, flags, _, err := l.conn.ReadMsgUnix(b, control)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return 0, nil, nil, err
	}
	if fds, err = rightsOf(control[:nc]); err == nil && flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 {
		err = fmt.Errorf("%w: a message of the handover was cut short: is the limit of open files too low?",
			object.ErrProtocol)
	}
	if err != nil {
		closeAll(fds)
		return 0, nil, nil, err
	}
	return b[0], b[1:n], fds, nil
}

func rightsOf(control []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(control)
	for i := 0; i < len(messages) && err == nil; i++ {
		var some []int
		some, err = unix.ParseUnixRights(&messages[i])
		fds = append(fds, some...)
	}
	return fds, err
}

// expect waits for a message without descriptors.
func (l *handoverLink) expect(want byte, limit time.Duration) error {
	kind, _, fds, err := l.receive(limit)
	closeAll(fds)
	if err == nil && kind != want {
		err = fmt.Errorf("%w: message %q, want %q", object.ErrProtocol, kind, want)
	}
	return err
}

// meetPredecessor greets the daemon at the other end of link and asks for the handover's socket; nil where it died. It
// closes nothing of the caller's.
func meetPredecessor(link *ipc.Dialed, version string) (*predecessor, error) {
	var hello wire.HelloReply
	f, err := ask(link, 1, wire.Hello, &wire.HelloRequest{Magic: wire.Magic, Lowest: wire.LowestVersion,
		Highest: wire.Version, Program: "tendril daemon " + version})
	if err == nil {
		err = hello.Decode(f.Payload)
	}
	if err != nil {
		return nil, unfriendly(err)
	}
	process, err := ipc.ProcessOf(int(hello.DaemonPID))
	if err != nil {
		return nil, unfriendly(err)
	}
	f, err = ask(link, 2, wire.Takeover, &wire.TakeoverRequest{Lowest: handoverOldest, Highest: handoverFormat})
	if p := (&predecessor{process: process}); hungUp(err) && p.died() {
		process.Close()
		return nil, nil
	}
	if err == nil && f.NumFDs != 1 {
		f.CloseFDs()
		err = fmt.Errorf("%w: no socket came", object.ErrProtocol)
	}
	if err != nil {
		process.Close()
		return nil, unfriendly(err)
	}
	end, err := newHandoverLink(f.FDs[0])
	if err != nil {
		process.Close()
		return nil, err
	}
	return &predecessor{link: end, process: process}, nil
}

// ask is one round trip.
func ask(link *ipc.Dialed, request uint64, kind wire.Type, p ipc.Payload) (ipc.Frame, error) {
	if err := link.Send(ipc.AppendFrame(nil, kind, 0, request, p)); err != nil {
		return ipc.Frame{}, err
	}
	late := time.Now().Add(10 * time.Second)
	f, err := link.Receive(func() error {
		if time.Now().After(late) {
			return fmt.Errorf("%w: no answer to a %v", object.ErrTimeout, kind)
		}
		return nil
	})
	if err != nil || f.Type == kind|wire.ReplyBit {
		return f, err
	}
	f.CloseFDs()
	var why wire.ErrorReply
	if err := why.Decode(f.Payload); err != nil || f.Type != wire.Error {
		return f, errors.Join(err, fmt.Errorf("%w: %v to a %v", object.ErrProtocol, f.Type, kind))
	}
	return f, object.FromCode(why.Code, why.Text)
}
