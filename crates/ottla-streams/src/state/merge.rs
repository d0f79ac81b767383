//! Two sorted runs as one: where both have a key, the upper one counts.
//!
//! Values may be absent ("deleted here"), so that runs can be stacked; the last consumer drops those.

use std::cmp::Ordering;

use bytes::Bytes;

use crate::engine::{Direction, EngineError};

/// A sorted run of keys with values or deletes.
pub(super) type Run<'a> = Box<dyn Iterator<Item = Result<(Bytes, Option<Bytes>), EngineError>> + 'a>;

/// See the module.
pub(super) struct Merged<'a> {
    upper: std::iter::Peekable<Run<'a>>,
    lower: std::iter::Peekable<Run<'a>>,
    direction: Direction,
}

impl<'a> Merged<'a> {
    /// Both runs go in that direction.
    pub(super) fn new(upper: Run<'a>, lower: Run<'a>, direction: Direction) -> Self {
        Self { upper: upper.peekable(), lower: lower.peekable(), direction }
    }
}

impl Iterator for Merged<'_> {
    type Item = Result<(Bytes, Option<Bytes>), EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        let order = match (self.upper.peek(), self.lower.peek()) {
            (Some(Ok((upper, _))), Some(Ok((lower, _)))) => match self.direction {
                Direction::Forward => upper.cmp(lower),
                Direction::Reverse => lower.cmp(upper),
            },
            (_, Some(Err(_))) | (None, _) => Ordering::Greater,
            (Some(_), _) => Ordering::Less,
        };
        match order {
            Ordering::Less => self.upper.next(),
            Ordering::Greater => self.lower.next(),
            Ordering::Equal => {
                self.lower.next();
                self.upper.next()
            }
        }
    }
}
