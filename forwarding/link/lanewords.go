package link

// Write sends p as it is, for a Lane that carries something else than chunks, and ends with its connection: Read is its other end. It blocks until
// the kernel has all.
func (l *Lane) Write(p []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, err := l.acquire()
	if err != nil {
		return err
	}
	return l.release(c, c.send(nil, p))
}
