package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"testing"
)

// TestConstantsAreCurrent: what is checked in is what the generator makes of the installed headers. Of another release
// of them, which has more names, it asks that no number differs.
func TestConstantsAreCurrent(t *testing.T) {
	source, err := readHeaders(headersDir)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("opencl-headers is not installed")
	}
	if err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile("../constants.go")
	if err != nil {
		t.Fatal(err)
	}
	made, err := generate(source)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(kept, fmt.Appendf(nil, "%s%x", sumMark, sum(source))) {
		if !bytes.Equal(made, kept) {
			t.Error("constants.go is not what the generator writes: go generate ./forwarding/cl")
		}
		return
	}
	now := values(t, made)
	for name, was := range values(t, kept) {
		if is, ok := now[name]; ok && !constant.Compare(was, token.EQL, is) {
			t.Errorf("cl.%s is %v, and %v in the installed headers", name, was, is)
		}
	}
}

// TestDispatchTableIsCurrent: every entry of the installed table has its function. (Without one it would not build.)
func TestDispatchTableIsCurrent(t *testing.T) {
	made, err := dispatchTable(headersDir)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("opencl-headers is not installed")
	}
	if err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile("../" + dispatchFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(made, kept) {
		t.Error("dispatch.h is not what the generator writes: go generate ./forwarding/cl")
	}
}

// values evaluates every constant of a generated file.
func values(t *testing.T, source []byte) map[string]constant.Value {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "constants.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]constant.Value{}
	for _, decl := range file.Decls {
		for _, spec := range decl.(*ast.GenDecl).Specs {
			s := spec.(*ast.ValueSpec)
			if all[s.Names[0].Name], err = evaluate(s.Values[0], all); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(all) < 900 {
		t.Fatalf("%d constants only", len(all))
	}
	return all
}

func TestHeadersForms(t *testing.T) {
	text := `
/* cl_things - bitfield */
#define CL_HEX                 0x1033
#define CL_NEGATIVE            -30 /* an error */
#define CL_SHIFT               (1 << 3) // beside
#define CL_ALIAS               CL_HEX
#define CL_MASK                ((1 << CL_SHIFT) - 1)
#define CL_CAST                ((cl_things) 0 - 1)
#define CL_CAST_INSIDE         (((cl_bitfield)1) << 31)
#define CL_UNSIGNED            0xFFFFFFFFU
#  define CL_INDENTED          10
#define CL_NAME \
    "a text"
#define CL_CALL(x)             ((x) + 1)
#define CL_GUARD
/* cl_nothing */
#define CL_HEX                 0x1033
`
	out, err := generate([]header{{"x.h", text}})
	if err != nil {
		t.Fatal(err)
	}
	want := `
// cl_things - bitfield
const (
	HEX         = 0x1033
	NEGATIVE    = -30
	SHIFT       = 1 << 3
	ALIAS       = HEX
	MASK        = (1 << SHIFT) - 1
	CAST        = 0 - 1
	CAST_INSIDE = (1) << 31
	UNSIGNED    = 0xFFFFFFFF
	INDENTED    = 10
)
`
	if _, body, _ := bytes.Cut(out, []byte("package cl\n")); string(body) != want {
		t.Errorf("got %s\nwant %s", body, want)
	}
	for _, bad := range []string{"#define CL_X f(1)\n", "#define CL_X 1.5\n", "#define CL_X 1\n#define CL_X 2\n",
		"#define CL_X CL_Y\n"} {
		if _, err := generate([]header{{"x.h", bad}}); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
