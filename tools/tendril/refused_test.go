package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/store/object"
)

// TestRefused: a daemon that has no connection left for a tenant is not told of as one that does not run.
func TestRefused(t *testing.T) {
	why := fmt.Errorf("%w: %d connections open", object.ErrBusy, 2)
	var out bytes.Buffer
	code := report(&out, refusedError{&client.EndedError{At: "/s", Why: why}})
	if code != exitFailure || out.String() != "tendril: the daemon at /s refuses the connection: 2 connections open\n" {
		t.Errorf("%d, %q", code, &out)
	}
	if code = report(&out, fmt.Errorf("%w: Create flags 0x5", object.ErrProtocol)); code != exitFailure ||
		!strings.Contains(out.String(), "of the same build") {
		t.Errorf("%d, %q", code, &out)
	}
}

// What a daemon refuses is no fault in how the command was written, whatever its text begins with.
func TestARefusalIsNotTheCommandsLine(t *testing.T) {
	for err, code := range map[error]int{object.ErrInvalid: exitUsage, object.ErrUnsupported: exitFailure} {
		var out bytes.Buffer
		err = markUsage(&cobra.Command{Use: "recover"}, fmt.Errorf("%w: it takes changes", err))
		if got := report(&out, err); got != code || !strings.HasSuffix(out.String(), "it takes changes\n") {
			t.Errorf("exit code %d, want %d: %q", got, code, out.String())
		}
	}
}
