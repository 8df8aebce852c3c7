package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// notWrong are functions of the dispatch table without a paragraph in wrong.table.
var notWrong = map[string]string{
	"clGetExtensionFunctionAddress":            "has no error code",
	"clGetExtensionFunctionAddressForPlatform": "has no error code",
	"clCreateSubDevicesEXT":                    "clCreateSubDevices by another name",
	"clRetainDeviceEXT":                        "clRetainDevice by another name",
	"clReleaseDeviceEXT":                       "clReleaseDevice by another name",
	"clGetKernelSubGroupInfoKHR":               "clGetKernelSubGroupInfo by another name",
}

// TestEveryArgumentIsWrong compares wrong.table with the dispatch table and the API's header: a paragraph for each
// function that is forwarded, with each of its arguments, each wrong or for a reason never wrong.
func TestEveryArgumentIsWrong(t *testing.T) {
	_, calls, err := readTable("tests/wrong.table")
	if err != nil {
		t.Fatal(err)
	}
	tried := map[string]bool{}
	for _, c := range calls {
		tried[c.function] = true
		for _, a := range c.arguments {
			if len(a.wrong) == 0 && a.reason == "" {
				t.Errorf("%s: %s is never wrong, and nothing says why", c.function, a.name)
			}
		}
	}
	refused := readText(t, "../../forwarding/icd/unsupported.h")
	for _, m := range regexp.MustCompile(`(?m)^    \.(cl\w+) = `).FindAllStringSubmatch(readText(t,
		"../../forwarding/icd/dispatch.h"), -1) {
		isRefused := regexp.MustCompile(`(?m)(^UNSUPPORTED(_CREATE)?\(|tdl_)` + m[1] + `\b`).MatchString(refused)
		if !tried[m[1]] && !isRefused && notWrong[m[1]] == "" {
			t.Errorf("%s has no paragraph in wrong.table", m[1])
		}
	}
	header, err := os.ReadFile("/usr/include/CL/cl.h")
	if err != nil {
		t.Skipf("skipped: no header of OpenCL to compare the arguments with: %v", err)
	}
	for _, c := range calls {
		var have []string
		for _, a := range c.arguments {
			have = append(have, a.name)
		}
		if want := parameters(string(header), c.function); !slices.Equal(have, want) {
			t.Errorf("%s has %v, the header %v", c.function, have, want)
		}
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// parameters are the names of a function's parameters in a header.
func parameters(header, function string) (names []string) {
	at := regexp.MustCompile(`\b` + function + `\s*\(`).FindStringIndex(header)
	if at == nil {
		return nil
	}
	depth, begin := 0, at[1]
	for i := begin; depth >= 0; i++ {
		switch c := header[i]; {
		case c == '(':
			depth++
		case depth == 0 && (c == ',' || c == ')'):
			if name := parameterName(header[begin:i]); name != "" {
				names = append(names, name)
			}
			begin = i + 1
			fallthrough
		default:
			if c == ')' {
				depth--
			}
		}
	}
	return names
}

var (
	callbackName = regexp.MustCompile(`\(\s*(?:CL_CALLBACK)?\s*\*\s*(\w+)\s*\)`)
	plainName    = regexp.MustCompile(`(\w+)\s*(?:\[\d*\])?\s*$`)
)

func parameterName(declaration string) string {
	if strings.TrimSpace(declaration) == "void" {
		return ""
	}
	if m := callbackName.FindStringSubmatch(declaration); m != nil {
		return m[1]
	}
	if m := plainName.FindStringSubmatch(declaration); m != nil {
		return m[1]
	}
	return ""
}
