package rig

import (
	"errors"
	"os/exec"
	"testing"
	"time"
)

// TestOnlyTheSilentHang: the limit begins anew with each word, and one that is silent for as long is killed.
func TestOnlyTheSilentHang(t *testing.T) {
	cmd := exec.Command("sleep", "3600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w := newWatch(cmd, time.Hour)
	w.begin()
	said := Buffer{wrote: w.goesOn}

	w.last = time.Now().Add(-2 * time.Hour)
	if _, err := said.Write([]byte("a word\n")); err != nil {
		t.Fatal(err)
	}
	w.look()
	if w.hangs {
		t.Error("it hangs, although it has just said something")
	}

	w.last = time.Now().Add(-2 * time.Hour)
	go w.look()
	if err := cmd.Wait(); err == nil {
		t.Error("it was not killed")
	}
	if err := w.End(); !errors.Is(err, ErrHung) {
		t.Errorf("%v, want ErrHung", err)
	}
	if said.String() != "a word\n" {
		t.Errorf("it said %q", said.String())
	}
}
