//! What batch number n holds, and what the stores hold after it.

use std::collections::BTreeMap;

use bytes::Bytes;
use ottla_env::rng::{Rng, SeededRng};
use ottla_streams::engine::{Batch, Direction, KeyRange, StoreId, Update, View};

/// The stores.
pub(crate) const NAMES: [&str; 2] = ["large", "small"];
const KEYS: u64 = 400;

fn key(number: u64) -> Bytes {
    Bytes::from(format!("key-{number:05}"))
}

/// The batch of that number: updates of both stores, some deletes, sometimes a range, and the number as meta.
pub(crate) fn batch(number: u64) -> Batch {
    let mut rng = SeededRng::new(number);
    let mut updates = Vec::new();
    for _ in 0..20 {
        let large = rng.below(4) > 0;
        let store = StoreId(u16::from(!large));
        let at = key(rng.below(KEYS));
        if rng.one_in(6) {
            updates.push(Update::Delete(store, at));
        } else {
            let length = if large { 200 } else { 8 };
            let value =
                format!("{number}:").into_bytes().into_iter().cycle().take(length).collect::<Vec<u8>>();
            updates.push(Update::Put(store, at, Bytes::from(value)));
        }
    }
    if rng.one_in(10) {
        let from = rng.below(KEYS);
        updates.insert(7, Update::DeleteRange(StoreId(0), key(from), key(from + 20)));
    }
    Batch { updates, meta: Some(Bytes::from(number.to_string())) }
}

/// The number of the last batch; 0 = none.
pub(crate) fn number_in(view: &impl View) -> u64 {
    let meta = view.meta().expect("read");
    meta.map_or(0, |meta| std::str::from_utf8(&meta).expect("text").parse().expect("a number"))
}

/// The content after some batch.
pub(crate) struct Model([BTreeMap<Bytes, Bytes>; 2]);

impl Model {
    /// After that batch.
    pub(crate) fn at(number: u64) -> Self {
        let mut stores = [BTreeMap::new(), BTreeMap::new()];
        for update in (1..=number).flat_map(|number| batch(number).updates) {
            match update {
                Update::Put(id, key, value) => drop(stores[usize::from(id.0)].insert(key, value)),
                Update::Delete(id, key) => drop(stores[usize::from(id.0)].remove(&key)),
                Update::DeleteRange(id, from, to) => {
                    stores[usize::from(id.0)].retain(|key, _| *key < from || *key >= to);
                }
            }
        }
        Self(stores)
    }
}

/// Whether every store holds exactly what the model holds.
pub(crate) fn same(view: &impl View, model: &Model) -> bool {
    (0u16..).map(StoreId).zip(&model.0).all(|(id, store)| {
        let found = view.scan(id, &KeyRange::ALL, Direction::Forward).map(|found| found.expect("read"));
        found.eq(store.iter().map(|(key, value)| (key.clone(), value.clone())))
    })
}
