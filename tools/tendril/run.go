package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

const runExample = `  tendril run -- clinfo -l
  tendril run --device 0 -- ./program --its-own-flag
  tendril run --device 'type=gpu,mem>=8G' --publish edges -- ./filter photo.jpg`

func (c *cli) runVerb() *cobra.Command {
	var o launchOptions
	cmd := &cobra.Command{
		Use:   "run [flags] -- PROGRAM [ARGS…]",
		Short: "Run an OpenCL program on the daemon's devices",
		Long: "Run an unmodified OpenCL program on the devices that the daemon offers. The program sees no other devices. It\n" +
			"replaces this process, so signals and the exit code are the program's own.",
		Example: runExample,
		GroupID: "opencl",
		Args:    needsProgram,
		RunE: func(cmd *cobra.Command, args []string) error {
			program, err := runnable(args[0])
			if err != nil {
				return err
			}
			vars, err := c.environment(cmd.Context(), o)
			if err != nil {
				return err
			}
			if library := linkedWithCUDA(program); library != "" {
				fmt.Fprintf(c.term.err, "tendril: %s uses CUDA (%s): only its OpenCL calls go to the daemon; 'tendril lease' gives a CUDA program a GPU of this node alone\n",
					args[0], library)
			}
			err = syscall.Exec(program, args, mergeEnv(os.Environ(), vars))
			return noProgramError{program, err}
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows PROGRAM is PROGRAM's
	o.flags(cmd)
	return cmd
}

// needsProgram checks that a command which runs a program is given one. A time after --wait is none: it is the flag's.
func needsProgram(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usagef("%[1]s needs a program: tendril %[1]s -- PROGRAM ARGS…", cmd.Name())
	}
	wait := cmd.Flags().Lookup("wait")
	if _, err := leaseWait(args[0]); err == nil && cmd.ArgsLenAtDash() < 0 && wait.Value.String() == wait.NoOptDefVal {
		return usagef("%q stands where the program is expected: a time is written --wait=%s", args[0], args[0])
	}
	return nil
}

// mergeEnv replaces and adds variables; one with an empty value is taken out.
func mergeEnv(env []string, vars map[string]string) []string {
	merged := slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, ours := vars[name]
		return ours
	})
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		if vars[name] != "" {
			merged = append(merged, name+"="+vars[name])
		}
	}
	return merged
}

// runnable finds a program as the shell would and refuses those that would silently run on other devices: the dynamic
// linker and the OpenCL loaders ignore these variables in programs that gain rights (ld.so(8), secure-execution mode).
func runnable(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", noProgramError{name, err}
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("program: %w", err)
	}
	why := ""
	switch {
	case info.Mode()&os.ModeSetuid != 0:
		why = "runs as its owner (setuid)"
	case info.Mode()&os.ModeSetgid != 0:
		why = "runs as its group (setgid)"
	case hasCapabilities(path):
		why = "has file capabilities"
	default:
		return path, nil
	}
	return "", fmt.Errorf("%s %s: the OpenCL loader ignores environment variables in such programs, so it would not find Tendril; run a copy without these rights", path, why)
}

// hasCapabilities reports whether a file grants capabilities(7).
func hasCapabilities(path string) bool {
	n, err := unix.Getxattr(path, "security.capability", nil)
	return err == nil && n > 0 || errors.Is(err, unix.ERANGE)
}
