package embedded

import (
	"bytes"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// maxLog is how much of a log is kept, in bytes: a member's whole start and a
// few thousand lines more.
const maxLog = 1 << 20

// logBuffer keeps the newest part of what was written to it.
type logBuffer struct {
	mu      sync.Mutex
	data    []byte
	dropped bool
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.data = append(l.data, p...)
	if len(l.data) > 2*maxLog {
		l.data = append([]byte(nil), l.data[len(l.data)-maxLog:]...)
		l.dropped = true
	}
	return len(p), nil
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	data := l.data
	if len(data) > maxLog {
		data = data[len(data)-maxLog:]
	}
	if l.dropped || len(data) < len(l.data) {
		// The first line that is left is most likely half a line.
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			data = data[i+1:]
		}
		return "...\n" + strings.ToValidUTF8(string(data), "?")
	}
	return string(data)
}

func (l *logBuffer) logger(name string) *zap.Logger {
	return newLogger(l).Named(name)
}

// newLogger writes lines that a person reads between the lines of a test.
func newLogger(w interface{ Write([]byte) (int, error) }) *zap.Logger {
	encoding := zap.NewDevelopmentEncoderConfig()
	encoding.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
	encoding.EncodeDuration = func(d time.Duration, e zapcore.PrimitiveArrayEncoder) { e.AppendString(d.String()) }
	core := zapcore.NewCore(zapcore.NewConsoleEncoder(encoding), zapcore.AddSync(w), zapcore.InfoLevel)
	return zap.New(core)
}
