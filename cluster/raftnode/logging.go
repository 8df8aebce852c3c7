package raftnode

import (
	"fmt"
	"io"

	"github.com/hashicorp/go-hclog"
	"github.com/sirupsen/logrus"
)

// bridge has raft's lines come out of log, level by level, none below level. raft's own default is DEBUG.
func bridge(log logrus.FieldLogger, level logrus.Level) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclogLevel(level), Output: io.Discard})
	l.RegisterSink(sink{log, hclogLevel(level)})
	return l
}

func hclogLevel(l logrus.Level) hclog.Level {
	switch l {
	case logrus.TraceLevel:
		return hclog.Trace
	case logrus.DebugLevel:
		return hclog.Debug
	case logrus.InfoLevel:
		return hclog.Info
	case logrus.WarnLevel:
		return hclog.Warn
	}
	return hclog.Error
}

// sink writes hclog's lines to a logrus logger.
type sink struct {
	log   logrus.FieldLogger
	level hclog.Level
}

// Accept writes one line; args are keys and values in turn.
func (s sink) Accept(name string, level hclog.Level, msg string, args ...any) {
	if level < s.level {
		return
	}
	fields := logrus.Fields{"component": name}
	for i := 0; i+1 < len(args); i += 2 {
		fields[fmt.Sprint(args[i])] = fmt.Sprintf("%v", hclogValue(args[i+1]))
	}
	out := s.log.WithFields(fields)
	switch {
	case level >= hclog.Error:
		out.Error(msg)
	case level == hclog.Warn:
		out.Warn(msg)
	case level == hclog.Info:
		out.Info(msg)
	default:
		out.Debug(msg)
	}
}

// hclogValue turns hclog.Fmt's pair of format and arguments into text.
func hclogValue(v any) any {
	if f, ok := v.(hclog.Format); ok && len(f) > 0 {
		return fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
	}
	return v
}

func silent() logrus.FieldLogger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}
