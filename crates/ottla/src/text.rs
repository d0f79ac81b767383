//! Times, sizes and bytes as people read them.

use std::time::Duration;

/// Milliseconds since the Unix epoch as `2026-11-29 18:03:20.123Z`; years 1970 to 9999.
pub(crate) fn time(ms: i64) -> String {
    let (days, in_day) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000));
    let (year, month, day) = date(days);
    let (hours, minutes) = (in_day / 3_600_000, in_day / 60_000 % 60);
    let (seconds, millis) = (in_day / 1000 % 60, in_day % 1000);
    format!("{year:04}-{month:02}-{day:02} {hours:02}:{minutes:02}:{seconds:02}.{millis:03}Z")
}

/// The date that many days behind 1970-01-01, counted in 400-year cycles that begin in March, so that a leap day
/// is the last of its year.
fn date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (cycle, of_cycle) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_cycle = (of_cycle - of_cycle / 1460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_cycle + 400 * cycle + i64::from(month <= 2);
    (year, month, day)
}

/// A duration as its two largest units.
pub(crate) fn duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    let seconds = duration.as_secs();
    match seconds {
        0 if ms == 0 => format!("{} us", duration.as_micros()),
        0 => format!("{ms} ms"),
        1..=59 => format!("{}.{} s", seconds, ms % 1000 / 100),
        60..=3599 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..=86_399 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// A duration given in milliseconds; negative ones are shown as zero.
pub(crate) fn duration_ms(ms: i64) -> String {
    duration(Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
}

/// Bytes with a binary unit.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..=1023 => format!("{bytes} B"),
        1024..=1_048_575 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..=1_073_741_823 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

/// Standard base64, padded.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let letter = LETTERS[(word >> (18 - 6 * index) & 63) as usize];
            text.push(if index <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves dates around leap days and the epoch.
    #[test]
    fn times() {
        assert_eq!(time(0), "1970-01-01 00:00:00.000Z");
        assert_eq!(time(951_782_399_999), "2000-02-28 23:59:59.999Z");
        assert_eq!(time(951_782_400_000), "2000-02-29 00:00:00.000Z");
        assert_eq!(time(4_107_542_400_000), "2100-03-01 00:00:00.000Z");
        assert_eq!(time(-1), "1969-12-31 23:59:59.999Z");
    }

    /// Proves the units of durations and sizes, and base64 with every padding.
    #[test]
    fn units() {
        assert_eq!(duration(Duration::from_micros(12)), "12 us");
        assert_eq!(duration(Duration::from_millis(1_950)), "1.9 s");
        assert_eq!(duration(Duration::from_secs(3_700)), "1 h 1 min");
        assert_eq!(duration_ms(-5), "0 us");
        assert_eq!(size(1_536), "1.5 KiB");
        assert_eq!([base64(b""), base64(b"a"), base64(b"ab"), base64(b"abc")], ["", "YQ==", "YWI=", "YWJj"]);
    }
}
