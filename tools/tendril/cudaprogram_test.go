package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A program that is linked with CUDA's libraries is known by its file; scripts and others are not.
func TestLinkedWithCUDA(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"f.c": "int cuInit(void) { return 0; }",
		"main.c": "int cuInit(void); int main(void) { return cuInit(); }", "script": "#!/bin/sh\n"} {
		if err := os.WriteFile(at(name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", at("libcuda.so.1"), at("f.c")},
		{"-o", at("with"), at("main.c"), at("libcuda.so.1")}, {"-o", at("without"), at("main.c"), at("f.c")},
	} {
		if said, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
			t.Fatalf("cc %q: %v\n%s", args, err, said)
		}
	}
	for name, want := range map[string]string{"with": "libcuda.so.1", "without": "", "script": "", "nothing": ""} {
		if got := linkedWithCUDA(at(name)); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
