//! What a crash leaves behind.
//!
//! A kill of the process leaves everything: the page cache belongs to the kernel. A power cut leaves what was
//! synced, and of the unsynced writes, lengths and names any part, in any order.

use super::content::{Content, PAGE_BYTES};
use super::fault::Fault;
use super::state::{Inode, NameChange, Pending, State};
use crate::rng::{Rng, shuffle};

/// How unsynced changes fare in one power cut; drawn per cut, so that the extremes are met often.
#[derive(Clone, Copy)]
enum Style {
    AllDropped,
    AllKept,
    Mixed,
}

impl State {
    /// The power is cut and comes back.
    pub(super) fn power_cut(&mut self, rng: &mut dyn Rng) {
        self.fired(Fault::PowerCut);
        let style = match rng.below(6) {
            0 => Style::AllDropped,
            1 => Style::AllKept,
            _ => Style::Mixed,
        };
        let name_changes = std::mem::take(&mut self.name_changes);
        for change in name_changes {
            if keeps(style, rng) {
                self.fired(Fault::CutNameKept);
                apply_name_change(&mut self.durable_names, change);
            } else {
                self.fired(Fault::CutNameLost);
            }
        }
        self.names = self.durable_names.clone();
        let named: std::collections::BTreeSet<u64> = self.names.values().copied().collect();
        self.inodes.retain(|inode, _| named.contains(inode));
        let mut inodes = std::mem::take(&mut self.inodes);
        for file in inodes.values_mut() {
            let survived = self.surviving(file, style, rng);
            *file = Inode {
                shortest: survived.len(),
                cache: survived.clone(),
                platter: survived,
                ..Inode::default()
            };
        }
        self.inodes = inodes;
        self.flip_bits_at_rest(rng);
        self.restart();
    }

    /// The process is killed; what it wrote stays in the page cache, unsynced.
    pub(super) fn kill(&mut self) {
        self.fired(Fault::ProcessKill);
        self.restart();
    }

    fn restart(&mut self) {
        self.generation += 1;
        self.stopped = false;
        self.stop_at = None;
        self.changes_left = None;
        self.locked = false;
        self.next.clear();
    }

    /// The platter of a file after its unsynced changes were kept, dropped, torn and reordered.
    fn surviving(&mut self, file: &Inode, style: Style, rng: &mut dyn Rng) -> Content {
        let mut platter = file.platter.clone();
        if file.pending.is_empty() {
            return platter;
        }
        let mut pending: Vec<&Pending> = file.pending.iter().collect();
        if pending.len() > 1 && matches!(style, Style::Mixed) && rng.one_in(2) {
            self.fired(Fault::CutReordered);
            shuffle(rng, &mut pending);
        }
        let mut lengths = vec![file.platter.len(), file.cache.len()];
        for change in pending {
            match change {
                Pending::SetLen(len) => {
                    lengths.push(*len);
                    if keeps(style, rng) {
                        platter.set_len(*len);
                    }
                }
                Pending::Write { offset, bytes } => {
                    lengths.push(offset + bytes.len() as u64);
                    self.write_survives(&mut platter, *offset, bytes, style, rng);
                }
            }
        }
        if matches!(style, Style::AllKept) {
            platter.set_len(file.cache.len());
        } else if rng.one_in(3) {
            let len = lengths[rng.index(lengths.len())];
            if len != platter.len() {
                self.fired(Fault::CutLength);
                platter.set_len(len);
            }
        }
        // What a sync has promised is kept, unless an unsynced cut was kept.
        if file.shortest >= file.platter.len() && platter.len() < file.platter.len() {
            platter.set_len(file.platter.len());
        }
        platter
    }

    fn write_survives(
        &mut self,
        platter: &mut Content,
        offset: u64,
        bytes: &[u8],
        style: Style,
        rng: &mut dyn Rng,
    ) {
        let fate = match style {
            Style::AllDropped => 1,
            Style::AllKept => 0,
            Style::Mixed => rng.below(4),
        };
        match fate {
            0 => {
                self.fired(Fault::CutKept);
                platter.write(bytes, offset);
            }
            1 => self.fired(Fault::CutDropped),
            2 => {
                self.fired(Fault::CutTorn512);
                tear(platter, offset, bytes, 512, rng);
            }
            _ => {
                self.fired(Fault::CutTorn4096);
                tear(platter, offset, bytes, PAGE_BYTES, rng);
            }
        }
    }

    fn flip_bits_at_rest(&mut self, rng: &mut dyn Rng) {
        let rates: Vec<_> =
            self.plan.rates.iter().filter(|rate| rate.fault == Fault::BitFlipRest).cloned().collect();
        let names: Vec<(String, u64)> =
            self.names.iter().map(|(name, inode)| (name.clone(), *inode)).collect();
        for (name, inode) in names {
            let fires =
                rates.iter().any(|rate| name.starts_with(&rate.prefix) && rng.chance(rate.per_million));
            let file = self.inode(inode);
            if fires && file.cache.len() > 0 {
                let (offset, bit) = (rng.below(file.cache.len()), u32::from(rng.below(8) as u8));
                file.cache.flip_bit(offset, bit);
                file.platter.flip_bit(offset, bit);
                self.fired(Fault::BitFlipRest);
            }
        }
    }
}

fn keeps(style: Style, rng: &mut dyn Rng) -> bool {
    match style {
        Style::AllDropped => false,
        Style::AllKept => true,
        Style::Mixed => rng.one_in(2),
    }
}

/// Writes some sectors of a write: those before a point, those behind it, or any.
fn tear(platter: &mut Content, offset: u64, bytes: &[u8], sector_bytes: u64, rng: &mut dyn Rng) {
    let end = offset + bytes.len() as u64;
    let first = offset / sector_bytes;
    let sectors = end.div_ceil(sector_bytes) - first;
    let (shape, point) = (rng.below(3), rng.below(sectors + 1));
    for index in 0..sectors {
        let lands = match shape {
            0 => index < point,
            1 => index >= point,
            _ => rng.one_in(2),
        };
        if lands {
            let start = ((first + index) * sector_bytes).max(offset);
            let stop = ((first + index + 1) * sector_bytes).min(end);
            let within = |at: u64| usize::try_from(at - offset).expect("inside the write");
            platter.write(&bytes[within(start)..within(stop)], start);
        }
    }
}

fn apply_name_change(names: &mut std::collections::BTreeMap<String, u64>, change: NameChange) {
    match change {
        NameChange::Create { name, inode } => {
            names.insert(name, inode);
        }
        NameChange::Rename { from, to, inode } => {
            if names.get(&from) == Some(&inode) {
                names.remove(&from);
            }
            names.insert(to, inode);
        }
        NameChange::Remove { name } => {
            names.remove(&name);
        }
    }
}
