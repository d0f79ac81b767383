//! The door to what our own process uses: memory, descriptors, processor time.

use std::io;
use std::time::Duration;

/// What the process uses at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of resident memory.
    pub resident_bytes: u64,
    /// Open file descriptors.
    pub open_files: u64,
    /// Processor time since the process began, user and system.
    pub cpu_time: Duration,
}

/// Asks the system. Linux only: elsewhere an error.
#[allow(clippy::disallowed_methods)] // this is the seam that everybody else uses
pub fn of_this_process() -> io::Result<Usage> {
    let resident_bytes = crate::process::resident_bytes(crate::process::id())?;
    // The folder that is being read is a descriptor itself.
    let open_files = (std::fs::read_dir("/proc/self/fd")?.count() as u64).saturating_sub(1);
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let cpu_time = Duration::new(
        u64::try_from(time.tv_sec).expect("the time used is positive"),
        u32::try_from(time.tv_nsec).expect("nanoseconds of a second fit"),
    );
    Ok(Usage { resident_bytes, open_files, cpu_time })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that work costs processor time, that an open file is counted, and that memory is not nothing.
    #[test]
    #[allow(clippy::disallowed_methods)] // files of the system, inside the seam
    fn usage_follows_what_we_do() {
        let before = of_this_process().expect("Linux");
        let files: Vec<_> =
            (0..50).map(|_| std::fs::File::open("/proc/self/status").expect("it exists")).collect();
        let mut sum = 0_u64;
        while of_this_process().expect("Linux").cpu_time == before.cpu_time {
            sum = (0..100_000).fold(sum, |sum: u64, n| std::hint::black_box(sum.wrapping_add(n)));
        }
        let after = of_this_process().expect("Linux");
        assert!(after.cpu_time > before.cpu_time && after.resident_bytes > 0);
        assert!(after.open_files >= 50, "{after:?}");
        drop(files);
    }
}
