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

/// Days behind 1970-01-01 of a date; the inverse of `date`.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (cycle, of_cycle) = (year.div_euclid(400), year.rem_euclid(400));
    let from_march = (month + 9) % 12;
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    cycle * 146_097 + of_cycle * 365 + of_cycle / 4 - of_cycle / 100 + of_year - 719_468
}

/// Reads a time as ms since the Unix epoch: `2026-11-29T18:03:20.123Z`, with an offset like `+01:00` instead of the
/// `Z`, without either for UTC, without the time of day for midnight, or plain ms.
pub(crate) fn parse_time(text: &str) -> Result<i64, String> {
    if let Ok(ms) = text.parse::<u64>() {
        return i64::try_from(ms).map_err(|_| "is too far away".to_owned());
    }
    read_time(text).ok_or_else(|| "is not a time like 2026-11-29T18:00:00Z, nor ms since 1970".to_owned())
}

fn read_time(text: &str) -> Option<i64> {
    let number = |part: &str, digits: usize| {
        (part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| part.parse::<i64>().ok())?
    };
    let clock = |part: &str| {
        let (hours, minutes) = part.split_once(':')?;
        let (hours, minutes) = (number(hours, 2)?, number(minutes, 2)?);
        (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)
    };
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00"));
    let mut parts = date.splitn(3, '-');
    let (year, month, day) =
        (number(parts.next()?, 4)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (time, offset) = match (time.strip_suffix('Z'), time.rfind(['+', '-'])) {
        (Some(time), _) => (time, 0),
        (None, Some(at)) => {
            let (time, offset) = time.split_at(at);
            let minutes = clock(&offset[1..])?;
            (time, if offset.starts_with('-') { -minutes } else { minutes })
        }
        (None, None) => (time, 0),
    };
    let (minutes, seconds) = match time.len() {
        5 => (clock(time)?, "00"),
        _ => (clock(time.get(..5)?)?, time.get(5..)?.strip_prefix(':')?),
    };
    let (seconds, fraction) = seconds.split_once('.').unwrap_or((seconds, "0"));
    let millis = number(&format!("{fraction:0<3}"), 3)?;
    let seconds = number(seconds, 2).filter(|seconds| *seconds < 60)?;
    let minutes = days(year, month, day) * 1440 + minutes - offset;
    Some((minutes * 60 + seconds) * 1000 + millis)
}

/// Reads a duration: `90s`, `10m`, `2h`, `7d`, `500ms`, or ISO 8601's `PT1H30M` and `P7D`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let iso = text.strip_prefix('P').map(|text| text.replace('T', "").to_lowercase());
    let lower = iso.clone().unwrap_or_else(|| text.to_owned());
    let mut total = Duration::ZERO;
    let mut rest = lower.as_str();
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
        let (count, unit) = rest.split_at(digits);
        let letters = unit.find(|letter: char| letter.is_ascii_digit()).unwrap_or(unit.len());
        let (unit, behind) = unit.split_at(letters);
        let ms = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err("is not a duration like 90s, 10m, 2h, 7d".to_owned()),
        };
        let count: u32 = count.parse().map_err(|_| "is not a duration like 90s, 10m, 2h, 7d".to_owned())?;
        total += Duration::from_millis(u64::from(count) * ms);
        rest = behind;
    }
    if lower.is_empty() { Err("is not a duration like 90s, 10m, 2h, 7d".to_owned()) } else { Ok(total) }
}

/// A number of things: `1 record`, `2 records`.
pub(crate) fn count(count: impl Copy + PartialEq + From<u8> + std::fmt::Display, one: &str) -> String {
    let more = if count == 1.into() { "" } else { "s" };
    format!("{count} {one}{more}")
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

/// The letters of base64 by their value.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Standard base64, padded.
pub(crate) fn base64(bytes: &[u8]) -> String {
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

/// Reads what `base64` writes, and nothing else; absent when it is something else.
pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for chunk in text.trim_end_matches('=').as_bytes().chunks(4) {
        let mut word = 0_u32;
        for letter in chunk {
            let value = LETTERS.iter().position(|known| known == letter)?;
            word = word << 6 | value as u32;
        }
        word <<= 6 * (4 - chunk.len());
        bytes.extend(&word.to_be_bytes()[1..chunk.len()]);
    }
    (base64(&bytes) == text).then_some(bytes)
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

    /// Proves that times are read as they are shown, with offsets, and that nonsense is refused.
    #[test]
    fn times_are_read() {
        for ms in [0, 951_782_400_000, 4_107_542_400_000, 1_764_439_400_123] {
            assert_eq!(parse_time(&time(ms)), Ok(ms), "{}", time(ms));
        }
        assert_eq!(parse_time("1970-01-02"), Ok(86_400_000));
        assert_eq!(parse_time("1970-01-01T01:30+01:00"), Ok(1_800_000));
        assert_eq!(parse_time("1970-01-01T00:00:00.5-00:30"), Ok(1_800_500));
        assert_eq!(parse_time("17"), Ok(17));
        for bad in
            ["", "yesterday", "2026-13-01", "2026-01-01T25:00", "2026-01-01T10:00:61", "2026-1-1", "-5"]
        {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }

    /// Proves how durations are read.
    #[test]
    fn durations_are_read() {
        let ms = |text: &str| parse_duration(text).map(|duration| duration.as_millis());
        assert_eq!((ms("90s"), ms("10m"), ms("500ms")), (Ok(90_000), Ok(600_000), Ok(500)));
        assert_eq!((ms("PT1H30M"), ms("P7D"), ms("0s")), (Ok(5_400_000), Ok(604_800_000), Ok(0)));
        for bad in ["", "P", "5", "h", "-5s", "1y", "99999999999h"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
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
        assert_eq!([count(0_u64, "file"), count(1_usize, "file")], ["0 files", "1 file"]);
    }

    /// Proves that base64 is read back for every length and byte, and that what is none is refused.
    #[test]
    fn base64_is_read() {
        let all: Vec<u8> = (0..=255).collect();
        for length in 0..=all.len() {
            let bytes = &all[all.len() - length..];
            assert_eq!(from_base64(&base64(bytes)).as_deref(), Some(bytes));
        }
        for bad in ["Y", "YQ", "YQ=", "YQ===", "YR==", "Y*==", "YWJj=", "=", "YQ==YQ=="] {
            assert_eq!(from_base64(bad), None, "{bad}");
        }
    }
}
