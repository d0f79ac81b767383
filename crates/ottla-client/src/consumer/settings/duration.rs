//! Durations as ISO 8601 writes them: `PnDTnHnMn.nS`, what `auto.offset.reset=by_duration:` takes.

use std::time::Duration;

/// Longest duration that makes sense: 100 years of 366 days.
const SECONDS_MAX: u64 = 100 * 366 * 86_400;

/// Reads one. None: it is not one, negative, empty, or longer than 100 years.
pub(super) fn parse(text: &str) -> Option<Duration> {
    let rest = text.strip_prefix(['P', 'p'])?;
    let (days, time) = match rest.split_once(['T', 't']) {
        Some((_, "")) => return None,
        Some((days, time)) => (days, time),
        None => (rest, ""),
    };
    let mut total = Duration::ZERO;
    let mut any = false;
    for (part, units) in [(days, &[('D', 86_400)][..]), (time, &[('H', 3600), ('M', 60), ('S', 1)])] {
        let mut part = part.to_ascii_uppercase();
        for (unit, seconds) in units {
            let Some((number, rest)) = part.split_once(*unit) else { continue };
            total = total.checked_add(amount(number, *seconds, *unit == 'S')?)?;
            part = rest.to_owned();
            any = true;
        }
        if !part.is_empty() {
            return None;
        }
    }
    (any && total.as_secs() <= SECONDS_MAX).then_some(total)
}

/// A number of units; only seconds may have a fraction, of up to nine digits.
fn amount(number: &str, seconds: u64, may_have_fraction: bool) -> Option<Duration> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole)
        || (number.contains('.') && !(may_have_fraction && digits(fraction) && fraction.len() <= 9))
    {
        return None;
    }
    let nanos: u32 = format!("{fraction:0<9}").parse().ok()?;
    Some(Duration::new(whole.parse::<u64>().ok()?.checked_mul(seconds)?, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that what ISO 8601 allows is read, and that everything else is refused.
    #[test]
    fn durations() {
        for (text, millis) in [
            ("P1D", 86_400_000),
            ("PT1H", 3_600_000),
            ("P1DT2H3M4.5S", 93_784_500),
            ("pt90m", 5_400_000),
            ("PT0S", 0),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for bad in
            ["", "P", "PT", "1D", "P1H", "PT1D", "P-1D", "PT1.5M", "PT1", "P1DT", "P99999999999D", "PTS"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
