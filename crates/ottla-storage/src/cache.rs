//! A small least-recently-used cache with a bound on the sum of its entries' weights.
//!
//! Used for open files (weight 1 each) and for extents read back from footers (their bytes). An entry heavier than
//! the whole bound is not kept.

use std::collections::BTreeMap;

/// Keys to values that are cheap to clone.
#[derive(Debug)]
pub(crate) struct Cache<K, V> {
    entries: BTreeMap<K, (u64, usize, V)>,
    by_use: BTreeMap<u64, K>,
    uses: u64,
    weight: usize,
    weight_max: usize,
}

impl<K: Ord + Copy, V: Clone> Cache<K, V> {
    pub(crate) fn new(weight_max: usize) -> Self {
        Self { entries: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0, weight: 0, weight_max }
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<V> {
        let (used, _, value) = self.entries.get_mut(key)?;
        self.by_use.remove(used);
        self.uses += 1;
        *used = self.uses;
        self.by_use.insert(self.uses, *key);
        Some(value.clone())
    }

    pub(crate) fn insert(&mut self, key: K, weight: usize, value: V) {
        self.remove(&key);
        if weight > self.weight_max {
            return;
        }
        self.weight += weight;
        self.uses += 1;
        self.entries.insert(key, (self.uses, weight, value));
        self.by_use.insert(self.uses, key);
        while self.weight > self.weight_max {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            if let Some((_, weight, _)) = self.entries.remove(&oldest) {
                self.weight -= weight;
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &K) {
        if let Some((used, weight, _)) = self.entries.remove(key) {
            self.by_use.remove(&used);
            self.weight -= weight;
        }
    }
}
