//go:build !cgo

package opencl

import "errors"

// Library needs cgo.
type Library struct{}

// Open fails: this binary was built with CGO_ENABLED=0.
func Open(icd string) (*Library, error) {
	return nil, errors.New("open " + icd + ": this binary was built without cgo and cannot load OpenCL drivers")
}
