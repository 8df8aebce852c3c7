//go:build cgo

package opencl

import (
	"io/fs"
	"os"
	"strings"
	"testing"
)

// TestUnopenedDriverFile: who may not read a driver file is told as whom, and what to do; what is not there, the rest.
func TestUnopenedDriverFile(t *testing.T) {
	_, err := readICD("/nowhere/a.icd")
	if err == nil || strings.Contains(err.Error(), "everybody") || !strings.Contains(err.Error(), "/nowhere/a.icd") {
		t.Errorf("a file that is not there: %v", err)
	}
	err = unopened(&os.PathError{Op: "open", Path: "/closed/a.icd", Err: fs.ErrPermission}, 65534)
	for _, want := range []string{"/closed/a.icd", "user 65534", "let everybody read it"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: without %q", err, want)
		}
	}
}
