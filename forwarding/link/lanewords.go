package link

import "golang.org/x/sys/unix"

// Write sends p as it is, for a Lane that carries something else than chunks: Read is its other end. It blocks until the
// kernel has all.
func (l *Lane) Write(p []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tls != nil {
		_, err := l.tls.Write(p)
		return hangupOr(err)
	}
	for len(p) > 0 {
		n, err := unix.SendmsgN(l.raw.fd, p, nil, nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return hangup(err)
		}
		p = p[n:]
	}
	return nil
}
