package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tendril/daemon"
	"tendril/store/object"
)

// A report says what is in it, and holds no secret and no object's name.
func TestDoctorReport(t *testing.T) {
	n := startNode(t)
	n.want(0, nil, "put", "--name", "private-name", "--label", "kind=private-label", n.file("x", []byte("private-bytes")))
	n.want(0, nil, "stream", "push", "private-stream", filepath.Join(n.dir, "x"), "--keep")
	var token struct{ Token string }
	n.json(&token, "token", "create")
	n.env = append(n.env, "TENDRIL_TOKEN=private-token", "TENDRIL_PUBLISH=private-result")
	path := filepath.Join(n.dir, "report.txt")
	_, _, errs := n.run("", "doctor", "--report", path)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err, errs)
	}
	report := string(raw)
	for _, part := range []string{"Not in it: tokens", "\n== versions\n", "daemon    test\n", "ok    daemon: ",
		"\nTENDRIL_TOKEN\n", "\ncapacity ", `"charged_bytes": `} {
		if !strings.Contains(report, part) {
			t.Errorf("no %q in:\n%s", part, report)
		}
	}
	if strings.Contains(report, "private-") || strings.Contains(report, token.Token) {
		t.Errorf("what is nobody's business:\n%s", report)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
	if !strings.Contains(errs, "Read it before you send it.") {
		t.Error(errs)
	}
	n.want(4, []string{"no such file"}, "doctor", "--report", filepath.Join(n.dir, "no", "where"))
	n.want(2, []string{"--report"}, "doctor", "--report", "")
}

// Names that a status has of damaged objects go.
func TestReportedStatus(t *testing.T) {
	var s daemon.Status
	s.Store.Damaged = []string{"private"}
	s.Transfers = []daemon.TransferStatus{{Name: "private"}}
	s.Store.Scrub.Last = &object.ScrubPass{ScrubReport: object.ScrubReport{Damaged: []object.Damage{{Name: "private"}}}}
	b, err := json.Marshal(withoutNames(s))
	if err != nil || strings.Contains(string(b), "private") {
		t.Errorf("%s %v", b, err)
	}
	if s.Store.Damaged[0] != "private" || s.Store.Scrub.Last.Damaged[0].Name != "private" {
		t.Error("it altered the status")
	}
}

// Every text of a status has been looked at: does it hold a secret, or an object's name? A new one that does is to be
// taken out by withoutNames.
func TestTextsOfAStatus(t *testing.T) {
	var texts []string
	var visit func(path string, of reflect.Type)
	visit = func(path string, of reflect.Type) {
		switch of.Kind() {
		case reflect.String:
			texts = append(texts, path)
		case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Array:
			visit(path, of.Elem())
		case reflect.Struct:
			for i := range of.NumField() {
				f := of.Field(i)
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				switch {
				case !f.IsExported() || name == "-":
				case f.Anonymous && name == "":
					visit(path, f.Type)
				default:
					visit(path+"."+name, f.Type)
				}
			}
		}
	}
	visit("", reflect.TypeFor[daemon.Status]())
	slices.Sort(texts)
	goldenText(t, "report-texts", strings.Join(texts, "\n")+"\n")
}

// What the doctor finds is printed when it is found; with --json there is one list, at the end.
func TestDoctorPrintsAsItGoes(t *testing.T) {
	var out bytes.Buffer
	d := &doctor{c: &cli{term: terminal{out: &out}}}
	d.note("disk", notable, "Free some.", "%d bytes left", 7)
	if got := out.String(); got != "warn  disk: 7 bytes left\n      Free some.\n" {
		t.Errorf("%q", got)
	}
	d.note("clock", faulty, "", "none")
	out.Reset()
	if err := d.report(); err == nil || err.Error() != "1 of 2 checks failed" || out.Len() != 0 {
		t.Errorf("%v, and once more %q", err, out.String())
	}
	d.c.json = true
	d.note("kernel", good, "ignored", "Linux")
	if out.Len() != 0 {
		t.Errorf("before the list: %q", out.String())
	}
	if err := d.report(); err == nil || !strings.HasPrefix(out.String(), "[") {
		t.Errorf("%v %q", err, out.String())
	}
}
