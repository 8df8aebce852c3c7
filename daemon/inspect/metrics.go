package inspect

import (
	"regexp"
	"strconv"
	"strings"
)

// text is an answer in Prometheus' text format 0.0.4. Two screens of code instead of a client library of 20 modules:
// the daemon counts for itself, and this only writes down.
type text string

var (
	metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	labelName  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	helpEscape = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	textEscape = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// metricsText writes the families down. One with a name that is none is left out: it would spoil the whole scrape.
func metricsText(families []Metric) text {
	var b strings.Builder
	for _, m := range families {
		if !metricName.MatchString(m.Name) {
			continue
		}
		kind := "gauge"
		if m.Counter {
			kind = "counter"
		}
		b.WriteString("# HELP " + m.Name + " " + helpEscape.Replace(m.Help) + "\n# TYPE " + m.Name + " " + kind + "\n")
		for _, s := range m.Samples {
			b.WriteString(m.Name)
			writeLabels(&b, s.Labels)
			b.WriteString(" " + strconv.FormatFloat(s.Value, 'g', -1, 64) + "\n")
		}
	}
	return text(b.String())
}

func writeLabels(b *strings.Builder, labels []string) {
	separator := "{"
	for i := 0; i+1 < len(labels); i += 2 {
		if !labelName.MatchString(labels[i]) {
			continue
		}
		b.WriteString(separator + labels[i] + `="` + textEscape.Replace(strings.ToValidUTF8(labels[i+1], "?")) + `"`)
		separator = ","
	}
	if separator == "," {
		b.WriteString("}")
	}
}
