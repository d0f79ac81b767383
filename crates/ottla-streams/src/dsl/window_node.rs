//! The node of a windowed aggregation: updates its windows, closes them when stream time reaches their end and
//! grace. Output 0 has every update, output 1 the final results.

use std::any::Any;
use std::sync::Arc;

use super::windows::{Spans, Windowed};
use crate::codec::SharedCodec;
use crate::processor::Record;
use crate::store::WindowStore;
use crate::task::node::{Cx, taken};
use crate::task::{Failure, Node};

/// Windows that are given out between two looks at the store.
const PIECE: usize = 256;

/// What a record makes of a result; absent = there was none.
pub(super) type Add<K, V, A> = Arc<dyn Fn(Option<A>, &Record<K, V>) -> A + Send + Sync>;

/// The node.
pub(super) struct WindowNode<K, V, A> {
    pub(super) store: WindowStore<K, A>,
    pub(super) keys: SharedCodec<K>,
    pub(super) spans: Spans,
    pub(super) add: Add<K, V, A>,
}

impl<K: Clone + 'static, V: 'static, A: Clone + 'static> Node for WindowNode<K, V, A> {
    fn process(&mut self, _port: u8, item: &mut dyn Any, cx: &mut Cx<'_>) -> Result<(), Failure> {
        let record = taken::<K, V>(item);
        if self.keys.is_null(&record.key) {
            cx.core.metrics.null_keys += 1;
            return Ok(());
        }
        let mut late = false;
        for start in self.spans.starts(record.timestamp) {
            if self.spans.is_closed(start, cx.core.stream_time) {
                late = true;
                continue;
            }
            let before = self.store.find(cx.core, &record.key, start)?;
            let timestamp =
                before.as_ref().map_or(record.timestamp, |(_, time)| (*time).max(record.timestamp));
            let value = (self.add)(before.map(|(value, _)| value), &record);
            self.store.write(cx.core, &record.key, (start, 0), Some(&value), timestamp)?;
            let key =
                Windowed { key: record.key.clone(), start, end: start.saturating_add(self.spans.size_ms) };
            let headers = record.headers.clone();
            cx.forward(0, Record { key, value: Some(value), timestamp, headers })?;
        }
        cx.core.metrics.late += u64::from(late);
        Ok(())
    }

    fn wants_time(&self) -> bool {
        true
    }

    fn next_due(&mut self, from: i64, to: i64, cx: &mut Cx<'_>) -> Result<Option<i64>, Failure> {
        if !cx.has_children(1) {
            return Ok(None);
        }
        let life = self.life();
        let (after, last) = (from.saturating_sub(life), to.saturating_sub(life));
        // Starts are multiples: most moves of time pass none.
        if after.div_euclid(self.spans.advance_ms) == last.div_euclid(self.spans.advance_ms) {
            return Ok(None);
        }
        let first = self.store.piece(cx.core, (after.saturating_add(1), last), None, 1)?;
        Ok(first.first().map(|(_, entry)| entry.start.saturating_add(life)))
    }

    fn advance(&mut self, to: i64, cx: &mut Cx<'_>) -> Result<(), Failure> {
        if !cx.has_children(1) {
            return Ok(());
        }
        let start = to.saturating_sub(self.life());
        let mut at = None;
        loop {
            let piece = self.store.piece(cx.core, (start, start), at, PIECE)?;
            let Some((last_key, _)) = piece.last() else { return Ok(()) };
            at = Some(last_key.clone());
            for (_, entry) in piece {
                let end = entry.start.saturating_add(self.spans.size_ms);
                let key = Windowed { key: entry.key, start: entry.start, end };
                cx.forward(1, Record::new(key, entry.value, entry.timestamp))?;
            }
        }
    }
}

impl<K, V, A> WindowNode<K, V, A> {
    /// From a window's start to the moment that closes it.
    fn life(&self) -> i64 {
        self.spans.size_ms.saturating_add(self.spans.grace_ms)
    }
}
