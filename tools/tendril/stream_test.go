package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tendril/store/object"
	"tendril/tools/e2e/await"
)

func TestStreamVerbs(t *testing.T) {
	n := startNode(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 200_000) // more than 3 frames, and not whole ones
	popped := make(chan string, 1)
	go func() {
		_, out, _ := n.run("", "stream", "pop", "blob")
		popped <- out
	}()
	if code, _, errs := n.run(string(data), "stream", "push", "blob", "--frame", "1MiB", "--frames", "2"); code != 0 {
		t.Fatal(errs)
	}
	if out := <-popped; out != string(data) {
		t.Errorf("%d bytes came, want %d", len(out), len(data))
	}
	if code, _, errs := n.run("a\nb\nc\n", "stream", "push", "lines", "--lines", "--more", "--keep"); code != 0 {
		t.Fatal(errs)
	}
	_, out, _ := n.run("", "stream", "ls", "--json")
	var list []object.StreamInfo
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 || list[0].Frames != 3 || !list[0].Keep {
		t.Errorf("%v: %s", err, out)
	}
	if code, out, errs := n.run("", "stream", "pop", "lines", "--lines", "-n", "2"); code != 0 || out != "a\nb\n" {
		t.Errorf("%d %q %s", code, out, errs)
	}
	dir := filepath.Join(n.dir, "frames")
	if code, _, errs := n.run("", "stream", "pop", "lines", "--dir", dir, "-n", "1"); code != 0 {
		t.Error(errs)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "00000003")); err != nil || string(b) != "c" {
		t.Errorf("%q, %v", b, err)
	}
	if code, _, _ := n.run("", "stream", "pop", "lines", "--wait", "10ms", "--lines"); code != exitTimeout {
		t.Errorf("an empty stream: code %d", code)
	}
	if code, _, errs := n.run("", "stream", "rm", "lines"); code != 0 {
		t.Error(errs)
	}
	if code, _, _ := n.run("", "stream", "rm", "lines"); code != exitNotFound {
		t.Errorf("a stream that is gone: code %d", code)
	}
	if code, _, _ := n.run("x", "stream", "push", "s", "--frame", "none"); code != exitUsage {
		t.Errorf("a frame of no size: code %d", code)
	}
}

// TestStreamPushKilled: a reader is told that the last writer died.
func TestStreamPushKilled(t *testing.T) {
	n := startNode(t)
	push := exec.Command(filepath.Join(built, "tendril"), "stream", "push", "s", "--lines", "--socket", n.socket)
	in, err := push.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := push.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("first\n")); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "line in the stream", func() bool {
		_, out, _ := n.run("", "stream", "ls")
		return strings.Contains(out, "1 of 16")
	})
	push.Process.Kill()
	push.Wait()
	in.Close()
	code, out, errs := n.run("", "stream", "pop", "s", "--lines")
	if code != exitFailure || out != "first\n" || !strings.Contains(errs, "ended without ending the stream") {
		t.Errorf("%d %q %q", code, out, errs)
	}
}

// TestStreamPopOfNothing: who waits for a stream that nobody made is told so, and how to end that; in a pipe too.
func TestStreamPopOfNothing(t *testing.T) {
	n := startNode(t)
	code, _, errs := n.run("", "stream", "pop", "nothere", "--lines", "--wait", "1500ms")
	if code != exitTimeout || !strings.Contains(errs, "There was no stream nothere") ||
		!strings.Contains(errs, "Ctrl-C") || !strings.Contains(errs, "tendril stream ls") {
		t.Errorf("%d %q", code, errs)
	}
	if code, _, errs := n.run("a\n", "stream", "push", "there", "--lines", "--more", "--keep"); code != 0 {
		t.Fatal(errs)
	}
	if code, out, errs := n.run("", "stream", "pop", "there", "--lines", "-n", "1"); code != 0 || out != "a\n" ||
		errs != "" {
		t.Errorf("%d %q %q", code, out, errs)
	}
}

func TestComposeVerb(t *testing.T) {
	n := startNode(t)
	for _, name := range []string{"image", "mask"} {
		if code, _, errs := n.run(name, "put", "-", "--name", name); code != 0 {
			t.Fatal(errs)
		}
	}
	if code, out, errs := n.run("", "compose", "sample", "i=image", "m=mask"); code != 0 ||
		!strings.Contains(out, "2 parts") {
		t.Fatal(code, out, errs)
	}
	if code, _, errs := n.run("", "rm", "mask"); code != 0 {
		t.Fatal(errs)
	}
	if _, out, _ := n.run("", "stat", "sample"); !strings.Contains(out, "parts\n  i  ") ||
		!strings.Contains(out, "  m  ") {
		t.Error(out)
	}
	if code, _, _ := n.run("", "compose", "x", "i=nothere"); code != exitNotFound {
		t.Errorf("a part that is not there: code %d", code)
	}
	if code, _, _ := n.run("", "compose", "x", "i"); code != exitUsage {
		t.Errorf("a part without a name: code %d", code)
	}
}
