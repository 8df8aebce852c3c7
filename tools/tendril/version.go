package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

type versionInfo struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	Library string `json:"library,omitempty"`         // where `run` finds the driver library
	Stamp   string `json:"library_version,omitempty"` // its version
}

func (c *cli) versionVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program and of its driver library",
		Example: "  tendril version\n  tendril version --json",
		GroupID: "node",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionInfo{Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
			if lib, err := findLibrary(""); err == nil {
				v.Library, v.Stamp = lib, libraryVersion(lib)
			}
			if c.json {
				return c.printJSON(v)
			}
			fmt.Fprintf(c.term.out, "tendril %s %s %s/%s\n", v.Version, v.Go, v.OS, v.Arch)
			if v.Library != "" {
				fmt.Fprintf(c.term.out, "driver library %s %s\n", orDash(v.Stamp), v.Library)
			}
			return nil
		},
	})
}
