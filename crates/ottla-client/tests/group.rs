//! Groups of our own consumers against a broker in this process: who gets what, who is told, what is committed.
//! What every client is asked, the list of `compat/suite-clients`, is here for ours where it is about groups.

mod group {
    mod commits;
    mod reading;
    mod rebalance;
    pub(crate) mod support;
}
