//go:build !cgo

package cuda

import "errors"

// Library needs cgo.
type Library struct{}

// Context needs cgo.
type Context struct{}

// Memory needs cgo.
type Memory struct{}

// Mapping needs cgo.
type Mapping struct{}

// Pinned needs cgo.
type Pinned struct{}

// Owned needs cgo.
type Owned struct{ Mapping }

// Stream needs cgo.
type Stream struct{}

// Event needs cgo.
type Event struct{}

var errNoCgo = errors.New("this binary was built without cgo and cannot load the CUDA driver")

// Open fails: this binary was built with CGO_ENABLED=0.
func Open(path string) (*Library, error) { return nil, errNoCgo }

// Devices fails.
func (l *Library) Devices() ([]Device, error) { return nil, errNoCgo }

// Context fails.
func (l *Library) Context(d Device) (*Context, error) { return nil, errNoCgo }

// Bytes is 0.
func (c *Context) Bytes() uint64 { return 0 }

// Granularity fails.
func (c *Context) Granularity() (uint64, error) { return 0, errNoCgo }

// FreeBytes fails.
func (c *Context) FreeBytes() (uint64, error) { return 0, errNoCgo }

// Create fails.
func (c *Context) Create(bytes uint64) (*Memory, error) { return nil, errNoCgo }

// Import fails.
func (c *Context) Import(fd int, bytes uint64) (*Memory, error) { return nil, errNoCgo }

// Close fails.
func (c *Context) Close() error { return errNoCgo }

// Export fails.
func (m *Memory) Export() (int, error) { return -1, errNoCgo }

// Map fails.
func (m *Memory) Map() (*Mapping, error) { return nil, errNoCgo }

// Allow fails.
func (m *Mapping) Allow(user *Context) error { return errNoCgo }

// Release fails.
func (m *Memory) Release() error { return errNoCgo }

// Fill fails.
func (m *Mapping) Fill(value byte, offset, bytes uint64) error { return errNoCgo }

// Write fails.
func (m *Mapping) Write(offset uint64, from []byte) error { return errNoCgo }

// Read fails.
func (m *Mapping) Read(to []byte, offset uint64) error { return errNoCgo }

// CopyFrom fails.
func (m *Mapping) CopyFrom(offset uint64, from *Mapping, fromOffset, bytes uint64) error {
	return errNoCgo
}

// Unmap fails.
func (m *Mapping) Unmap() error { return errNoCgo }

// Pin fails.
func (c *Context) Pin(memory []byte, readOnly bool) (*Pinned, error) { return nil, errNoCgo }

// Own fails.
func (c *Context) Own(bytes uint64) (*Owned, error) { return nil, errNoCgo }

// Handle fails.
func (m *Owned) Handle() ([HandleBytes]byte, error) { return [HandleBytes]byte{}, errNoCgo }

// Free fails.
func (m *Owned) Free() error { return errNoCgo }

// Reaches fails.
func (c *Context) Reaches(other *Context) (bool, error) { return false, errNoCgo }

// Stream fails.
func (c *Context) Stream() (*Stream, error) { return nil, errNoCgo }

// Unpin fails.
func (p *Pinned) Unpin() error { return errNoCgo }

// Wait fails.
func (s *Stream) Wait() error { return errNoCgo }

// Close fails.
func (s *Stream) Close() error { return errNoCgo }

// WriteLater fails.
func (v *Mapping) WriteLater(s *Stream, offset uint64, from []byte) error { return errNoCgo }

// ReadLater fails.
func (v *Mapping) ReadLater(s *Stream, to []byte, offset uint64) error { return errNoCgo }

// CopyLater fails.
func (v *Mapping) CopyLater(s *Stream, offset uint64, from *Mapping, fromOffset, bytes uint64) error {
	return errNoCgo
}

// Event fails.
func (c *Context) Event() (*Event, error) { return nil, errNoCgo }

// Close fails.
func (e *Event) Close() error { return errNoCgo }

// Record fails.
func (s *Stream) Record(e *Event) error { return errNoCgo }

// Await fails.
func (s *Stream) Await(e *Event) error { return errNoCgo }
