package main

import (
	"debug/elf"
	"strings"
)

// cudaLibraries are what a program that uses CUDA is linked with, by how their names begin.
var cudaLibraries = []string{"libcuda.so", "libcudart.so", "libnvrtc.so", "libcublas", "libcudnn"}

// linkedWithCUDA is the library of CUDA that a program's file asks for; "": none, or the file is no ELF program. What a
// program loads later, as Python does, the driver library finds.
func linkedWithCUDA(path string) string {
	f, err := elf.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	libraries, err := f.ImportedLibraries()
	if err != nil {
		return ""
	}
	for _, library := range libraries {
		for _, prefix := range cudaLibraries {
			if strings.HasPrefix(library, prefix) {
				return library
			}
		}
	}
	return ""
}
