package verbs

import "log/slog"

// LogValue implements slog.LogValuer.
func (q *QP) LogValue() slog.Value {
	q.mu.Lock()
	defer q.mu.Unlock()
	v := []slog.Attr{slog.Uint64("num", uint64(q.num)), slog.String("state", q.state.String())}
	if q.stream != nil {
		v = append(v, slog.Any("peer", q.info.Remote))
	}
	return slog.GroupValue(v...)
}

// LogValue implements slog.LogValuer.
func (m *MR) LogValue() slog.Value {
	return slog.GroupValue(slog.String("stag", m.STag().String()), slog.Uint64("base", m.Base()), slog.Int("len", m.Len()),
		slog.String("access", m.Access().String()), slog.Bool("valid", m.Valid()))
}

// LogValue implements slog.LogValuer.
func (w WC) LogValue() slog.Value {
	v := []slog.Attr{slog.Uint64("id", w.ID), slog.String("op", w.Op.String()), slog.String("status", w.Status.String())}
	if w.QP != nil {
		v = append(v, slog.Uint64("qp", uint64(w.QP.num)))
	}
	if w.Status == Success {
		v = append(v, slog.Uint64("len", uint64(w.ByteLen)))
	} else if w.Err != nil {
		v = append(v, slog.String("err", w.Err.Error()))
	}
	return slog.GroupValue(v...)
}
