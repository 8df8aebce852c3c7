//go:build !cgo

package worker

import (
	"context"
	"errors"
)

var errNoCgo = errors.New("this binary was built without cgo and cannot run OpenCL drivers")

// Main fails: there is no driver binding.
func Main(context.Context, Options) error { return errNoCgo }

// Probe fails: there is no driver binding.
func Probe(context.Context, Options) error { return errNoCgo }
