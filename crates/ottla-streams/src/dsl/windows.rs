//! Windows: spans of event time that records are grouped by, and how long their results are kept.
//!
//! A window is closed once stream time has reached its end plus the grace; records for it are late then, left out
//! and counted. Times are milliseconds; a shorter span is an error of the topology.

use std::time::Duration;

use super::{Shared, report};
use crate::codec::{Codec, CodecError, SharedCodec};
use crate::topology::TopologyError;

/// Windows that one record may belong to.
const OVERLAP_MAX: i64 = 1_000;

/// A key and a window of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Windowed<K> {
    /// The key.
    pub key: K,
    /// First ms of the window; of a session, its first timestamp.
    pub start: i64,
    /// First ms after the window; of a session, its last timestamp.
    pub end: i64,
}

/// Windows of one size at regular starts; made by [`Tumbling`] and [`Hopping`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeWindows {
    size: Duration,
    advance: Duration,
    grace: Duration,
    retention: Option<Duration>,
}

/// Windows side by side: each record belongs to one.
#[derive(Clone, Copy, Debug)]
pub struct Tumbling;

impl Tumbling {
    /// Windows of that size. They start at its multiples, counted from 1970.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ottla_streams::{codec::Utf8, dsl::Tumbling, topology::Topology};
    /// Topology::new("app", |b| {
    ///     let minutes = Tumbling::of(Duration::from_secs(60)).grace(Duration::from_secs(5));
    ///     b.stream("in", Utf8, Utf8).window(minutes).count("per-minute").emit_on_close().to("out");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn of(size: Duration) -> TimeWindows {
        TimeWindows { size, advance: size, grace: Duration::ZERO, retention: None }
    }
}

/// Windows that overlap: each record belongs to several.
#[derive(Clone, Copy, Debug)]
pub struct Hopping;

impl Hopping {
    /// Windows of that size, one starting at each multiple of `every`; at most 1,000 of them overlap.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ottla_streams::{codec::Utf8, dsl::Hopping, topology::Topology};
    /// Topology::new("app", |b| {
    ///     let windows = Hopping::of(Duration::from_secs(60), Duration::from_secs(10));
    ///     b.stream("in", Utf8, Utf8).window(windows).count("last-minute").changes().to("out");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn of(size: Duration, every: Duration) -> TimeWindows {
        TimeWindows { size, advance: every, grace: Duration::ZERO, retention: None }
    }
}

impl TimeWindows {
    /// How much later than its window's end, in stream time, a record may come. Zero unless it is said.
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// How long after its start, in stream time, a window can be read; at least size and grace, which it is unless
    /// it is said.
    pub fn retention(self, retention: Duration) -> Self {
        Self { retention: Some(retention), ..self }
    }

    /// In ms, checked.
    pub(super) fn checked(self, graph: &Shared, node: &str) -> Spans {
        let size_ms = millis(graph, node, "size", self.size, 1);
        let advance_ms = millis(graph, node, "step", self.advance, 1);
        let grace_ms = millis(graph, node, "grace", self.grace, 0);
        let least = size_ms.saturating_add(grace_ms);
        let retention_ms = self.retention.map_or(least, |kept| millis(graph, node, "retention", kept, least));
        let bad = |reason: String| report(graph, TopologyError::BadWindow { node: node.to_owned(), reason });
        if advance_ms > size_ms {
            bad(format!("windows of {size_ms} ms every {advance_ms} ms leave gaps"));
        } else if size_ms / advance_ms > OVERLAP_MAX {
            bad(format!("more than {OVERLAP_MAX} windows overlap"));
        }
        Spans { size_ms, advance_ms, grace_ms, retention_ms }
    }
}

/// [`TimeWindows`] in ms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spans {
    pub(super) size_ms: i64,
    pub(super) advance_ms: i64,
    pub(super) grace_ms: i64,
    pub(super) retention_ms: i64,
}

impl Spans {
    /// Starts of the windows of a moment, the earliest first. None is before 1970.
    pub(super) fn starts(self, moment: i64) -> impl Iterator<Item = i64> {
        let last = moment.div_euclid(self.advance_ms).saturating_mul(self.advance_ms);
        let first = moment.saturating_sub(self.size_ms).saturating_add(self.advance_ms).max(0);
        let first = first.div_euclid(self.advance_ms).saturating_mul(self.advance_ms);
        let count = last.saturating_sub(first) / self.advance_ms + 1;
        (0..count).map(move |step| first + step * self.advance_ms)
    }

    /// Whether the window that starts then is closed.
    pub(super) fn is_closed(self, start: i64, stream_time: i64) -> bool {
        start.saturating_add(self.size_ms).saturating_add(self.grace_ms) <= stream_time
    }
}

/// Sessions: spans of activity of a key, apart by more than a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionWindows {
    gap: Duration,
    grace: Duration,
    retention: Option<Duration>,
}

impl SessionWindows {
    /// Records of a key at most that far apart belong to one session.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ottla_streams::{codec::Utf8, dsl::SessionWindows, topology::Topology};
    /// Topology::new("app", |b| {
    ///     let visits = SessionWindows::gap(Duration::from_secs(1800)).grace(Duration::from_secs(60));
    ///     b.stream("clicks", Utf8, Utf8).sessions(visits).count("visits").emit_on_close().to("visits-out");
    /// })?;
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn gap(gap: Duration) -> Self {
        Self { gap, grace: Duration::ZERO, retention: None }
    }

    /// How much later than stream time less the gap a record may come. A session is closed once stream time has passed
    /// its last timestamp plus gap and grace; it does not change any more then. Zero unless it is said.
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// How long after its end, in stream time, a session can be read; at least gap and grace, which it is unless it
    /// is said.
    pub fn retention(self, retention: Duration) -> Self {
        Self { retention: Some(retention), ..self }
    }

    pub(super) fn checked(self, graph: &Shared, node: &str) -> SessionSpans {
        let gap_ms = millis(graph, node, "gap", self.gap, 0);
        let grace_ms = millis(graph, node, "grace", self.grace, 0);
        let least = gap_ms.saturating_add(grace_ms);
        let retention_ms = self.retention.map_or(least, |kept| millis(graph, node, "retention", kept, least));
        SessionSpans { gap_ms, grace_ms, retention_ms }
    }
}

/// [`SessionWindows`] in ms.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionSpans {
    pub(super) gap_ms: i64,
    pub(super) grace_ms: i64,
    pub(super) retention_ms: i64,
}

impl SessionSpans {
    /// First stream time at which a session with that end is closed.
    pub(super) fn closes_at(self, end: i64) -> i64 {
        end.saturating_add(self.gap_ms).saturating_add(self.grace_ms).saturating_add(1)
    }

    /// First stream time at which a session with that end is gone.
    pub(super) fn gone_at(self, end: i64) -> i64 {
        end.saturating_add(self.retention_ms).saturating_add(1)
    }
}

/// Which records of two streams belong together: `other - this` between `-before` and `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinWindow {
    before: Duration,
    after: Duration,
    grace: Duration,
}

impl JoinWindow {
    /// The other record is at most that far away, before or after.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ottla_streams::dsl::JoinWindow;
    /// // The click comes at most ten seconds after the view, and may be read a second late.
    /// let window = JoinWindow::within(Duration::from_secs(10)).before(Duration::ZERO).grace(Duration::from_secs(1));
    /// ```
    pub fn within(span: Duration) -> Self {
        Self { before: span, after: span, grace: Duration::ZERO }
    }

    /// How far before this record the other one may be.
    pub fn before(self, before: Duration) -> Self {
        Self { before, ..self }
    }

    /// How far after this record the other one may be.
    pub fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }

    /// How much later than the end of its window, in stream time, a record may come. Zero unless it is said.
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    pub(super) fn checked(self, graph: &Shared, node: &str) -> JoinSpans {
        JoinSpans {
            before_ms: millis(graph, node, "span before", self.before, 0),
            after_ms: millis(graph, node, "span after", self.after, 0),
            grace_ms: millis(graph, node, "grace", self.grace, 0),
        }
    }
}

/// [`JoinWindow`] in ms.
#[derive(Clone, Copy, Debug)]
pub(super) struct JoinSpans {
    pub(super) before_ms: i64,
    pub(super) after_ms: i64,
    pub(super) grace_ms: i64,
}

/// A span in ms; reports one that is too short or too long to count.
pub(super) fn millis(graph: &Shared, node: &str, what: &str, span: Duration, least: i64) -> i64 {
    let bad = |reason: String| {
        report(graph, TopologyError::BadWindow { node: node.to_owned(), reason });
        least.max(1)
    };
    match i64::try_from(span.as_millis()) {
        Ok(ms) if ms < least => bad(format!("the {what} of {span:?} is less than {least} ms")),
        Ok(ms) if ms <= i64::MAX / 8 => ms,
        Ok(_) | Err(_) => bad(format!("the {what} of {span:?} is too long")),
    }
}

/// Windowed keys as bytes, as Kafka Streams writes them: the key, then the start of the window in ms, 8 bytes
/// big-endian; for sessions the key, end and start.
pub(super) struct WindowedCodec<K> {
    pub(super) key: SharedCodec<K>,
    /// Absent = sessions.
    pub(super) size_ms: Option<i64>,
}

impl<K: 'static> Codec<Windowed<K>> for WindowedCodec<K> {
    fn name(&self) -> &'static str {
        "windowed"
    }

    fn encode(&self, value: &Windowed<K>, out: &mut Vec<u8>) -> Result<(), CodecError> {
        self.key.encode(&value.key, out)?;
        if self.size_ms.is_none() {
            out.extend_from_slice(&value.end.to_be_bytes());
        }
        out.extend_from_slice(&value.start.to_be_bytes());
        Ok(())
    }

    fn decode(&self, bytes: &[u8]) -> Result<Windowed<K>, CodecError> {
        let short = || CodecError::new("windowed", "too short");
        let (rest, start) = bytes.split_last_chunk::<8>().ok_or_else(short)?;
        let start = i64::from_be_bytes(*start);
        let (key, end) = match self.size_ms {
            Some(size_ms) => (rest, start.saturating_add(size_ms)),
            None => {
                let (key, end) = rest.split_last_chunk::<8>().ok_or_else(short)?;
                (key, i64::from_be_bytes(*end))
            }
        };
        Ok(Windowed { key: self.key.decode(key)?, start, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(size_ms: i64, advance_ms: i64, moment: i64) -> Vec<i64> {
        let spans = Spans { size_ms, advance_ms, grace_ms: 0, retention_ms: size_ms };
        spans.starts(moment).collect()
    }

    /// Proves that a moment belongs to exactly the windows that hold it, at the bounds too, and that the end of a
    /// window is outside.
    #[test]
    fn windows_of_a_moment() {
        assert_eq!(starts(10, 10, 0), [0]);
        assert_eq!(starts(10, 10, 9), [0]);
        assert_eq!(starts(10, 10, 10), [10]);
        assert_eq!(starts(10, 5, 12), [5, 10]);
        assert_eq!(starts(10, 5, 3), [0], "none starts before 1970");
        assert_eq!(starts(10, 4, 11), [4, 8], "12 is not there yet, 0 has ended");
        for (size, advance) in [(10, 3), (7, 7), (9, 2), (1, 1)] {
            for moment in 0..60 {
                let naive: Vec<i64> = (0..=moment)
                    .filter(|start| start % advance == 0 && *start <= moment && moment < start + size)
                    .collect();
                assert_eq!(starts(size, advance, moment), naive, "size {size}, every {advance}, at {moment}");
            }
        }
        assert_eq!(starts(10, 5, i64::MAX).len(), 2, "no overflow at the end of time");
    }

    /// Proves that windowed keys are Kafka's bytes and come back.
    #[test]
    fn windowed_keys() {
        let codec = WindowedCodec { key: std::sync::Arc::new(crate::codec::Utf8), size_ms: Some(10) };
        let key = Windowed { key: "k".to_string(), start: 20, end: 30 };
        let mut out = Vec::new();
        codec.encode(&key, &mut out).expect("fits");
        assert_eq!(out, [b'k', 0, 0, 0, 0, 0, 0, 0, 20]);
        assert_eq!(codec.decode(&out), Ok(key));
        assert!(codec.decode(&out[..7]).is_err());
        let sessions = WindowedCodec { size_ms: None, ..codec };
        let key = Windowed { key: "k".to_string(), start: 3, end: 7 };
        out.clear();
        sessions.encode(&key, &mut out).expect("fits");
        assert_eq!(sessions.decode(&out), Ok(key));
    }
}
