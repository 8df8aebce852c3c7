package client

// Populate enters all pages of the object into this process's page table with one call, instead of a fault a page: for
// a large object that is about to be read whole by a process that has not seen it. Nothing after Release.
func (o *Object) Populate() {
	if o.view == nil || o.released.Load() {
		return
	}
	if _, err := o.view.forReading(); err != nil {
		return // Bytes says what is wrong; populating is advice
	}
	o.view.mu.Lock()
	defer o.view.mu.Unlock()
	if o.view.readable != nil {
		o.view.readable.Populate(o.off, o.off+o.size)
	}
}
