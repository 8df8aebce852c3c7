package inspect

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"strings"
)

//go:embed ui
var uiFiles embed.FS

// uiScripts are the page's scripts in their order: one scope has them all.
var uiScripts = []string{"base.js", "pictures.js", "preview.js", "page.js"}

// page is the one page, in one piece, with the policy that lets nothing but its own script and style run and nothing
// but this node be asked (Content Security Policy Level 3).
type page struct {
	html   []byte
	policy string
}

func buildPage() page {
	read := func(name string) string {
		b, err := uiFiles.ReadFile("ui/" + name)
		if err != nil {
			panic(err) // the program was built without it
		}
		return string(b)
	}
	hash := func(s string) string {
		sum := sha256.Sum256([]byte(s))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	css, js := read("page.css"), "\"use strict\";\n(() => {\n"
	for _, name := range uiScripts {
		js += read(name)
	}
	js += "})();\n"
	html := strings.NewReplacer("/*CSS*/", css, "/*JS*/", js).Replace(read("page.html"))
	policy := "default-src 'none'; script-src " + hash(js) + "; style-src " + hash(css) +
		"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	return page{html: []byte(html), policy: policy}
}
