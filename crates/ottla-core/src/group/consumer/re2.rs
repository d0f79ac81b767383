//! Regular expressions over names of topics, with RE2's syntax and meaning.
//!
//! Place in the walk: a member's subscription is compiled when it is new, to refuse it, and when topics changed,
//! to resolve it. A pattern must match a whole name.
//!
//! The `regex` crate has RE2's automata and nearly its syntax. [`translate`] makes the rest agree: `\Q..\E`,
//! octal escapes and lone braces exist, nested classes, set operations, flags `x`, `u`, `R` and repeated
//! repetitions do not, `\d`, `\w`, `\s` and `\b` are ASCII, counts end at 1000.
//!
//! Bounds: [`PATTERN_BYTES_MAX`] for the text, [`COMPILED_BYTES_MAX`] for the automaton; matching is linear.

use std::iter::Peekable;
use std::str::Chars;

use regex::{Regex, RegexBuilder};

/// Longest pattern, bytes.
pub(super) const PATTERN_BYTES_MAX: usize = 4096;
/// Largest automaton, bytes.
const COMPILED_BYTES_MAX: usize = 2 << 20;
/// Largest count of a repetition.
const REPEAT_MAX: u32 = 1000;

/// A compiled pattern.
#[derive(Clone, Debug)]
pub(super) struct Pattern(Regex);

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// What is wrong with it, for the answer.
    pub(super) fn new(pattern: &str) -> Result<Self, String> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(format!("the regular expression is longer than {PATTERN_BYTES_MAX} bytes"));
        }
        let refused = |reason: String| format!("the regular expression {pattern:?} is not valid: {reason}");
        let inner = translate(pattern).map_err(|reason| refused(reason.to_owned()))?;
        let regex = RegexBuilder::new(&format!(r"\A(?:{inner})\z"))
            .size_limit(COMPILED_BYTES_MAX)
            .dfa_size_limit(COMPILED_BYTES_MAX)
            .build()
            .map_err(|error| refused(reason_of(&error)))?;
        Ok(Self(regex))
    }

    /// Whether the whole of a name matches.
    pub(super) fn matches(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

fn reason_of(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(_) => "it is too large".to_owned(),
        error => error.to_string().lines().last().unwrap_or_default().to_owned(),
    }
}

/// The pattern in the syntax of the `regex` crate.
fn translate(pattern: &str) -> Result<String, &'static str> {
    let mut translator = Translator { rest: pattern.chars().peekable(), out: String::new(), depth: 0 };
    translator.run()?;
    Ok(translator.out)
}

/// One escape: a character, or what stands for several.
enum Escape {
    Char(char),
    /// A class, as items and as a class of its own.
    Class {
        items: &'static str,
        class: &'static str,
    },
    /// Something that is copied as it is.
    Verbatim(String),
    /// The characters of `\Q..\E`.
    Quoted(Vec<char>),
}

struct Translator<'a> {
    rest: Peekable<Chars<'a>>,
    out: String,
    /// Open groups.
    depth: usize,
}

impl Translator<'_> {
    fn run(&mut self) -> Result<(), &'static str> {
        while let Some(c) = self.rest.next() {
            match c {
                '\\' => match self.escape(false)? {
                    Escape::Char(c) => self.push_char(c),
                    Escape::Class { class, .. } => self.out.push_str(class),
                    Escape::Verbatim(text) => self.out.push_str(&text),
                    Escape::Quoted(chars) => chars.into_iter().for_each(|c| self.push_char(c)),
                },
                '[' => self.class()?,
                '(' => self.open_group()?,
                ')' => {
                    self.depth = self.depth.checked_sub(1).ok_or("a parenthesis closes nothing")?;
                    self.out.push(')');
                }
                '*' | '+' | '?' => {
                    self.out.push(c);
                    self.end_repetition()?;
                }
                '{' => match self.count()? {
                    Some(count) => {
                        self.out.push_str(&count);
                        self.end_repetition()?;
                    }
                    None => self.push_char('{'),
                },
                c => self.out.push(c),
            }
        }
        if self.depth == 0 { Ok(()) } else { Err("a parenthesis is not closed") }
    }

    fn push_char(&mut self, c: char) {
        self.out.push_str(&format!("\\x{{{:x}}}", u32::from(c)));
    }

    /// Behind a repetition: it may be lazy, and may not be repeated.
    fn end_repetition(&mut self) -> Result<(), &'static str> {
        if self.rest.next_if_eq(&'?').is_some() {
            self.out.push('?');
        }
        let repeats = match self.rest.peek() {
            Some('*' | '+' | '?') => true,
            Some('{') => {
                let mut ahead = self.rest.clone();
                ahead.next();
                read_count(&mut ahead).is_some()
            }
            _ => false,
        };
        if repeats { Err("a repetition is repeated") } else { Ok(()) }
    }

    /// Behind `{`: the count, if it is one.
    fn count(&mut self) -> Result<Option<String>, &'static str> {
        let mut ahead = self.rest.clone();
        let Some((text, most)) = read_count(&mut ahead) else { return Ok(None) };
        if most > REPEAT_MAX {
            return Err("a repetition count is larger than 1000");
        }
        self.rest = ahead;
        Ok(Some(text))
    }

    /// Behind `(`: a group, its name or its flags.
    fn open_group(&mut self) -> Result<(), &'static str> {
        self.depth += 1;
        self.out.push('(');
        if self.rest.next_if_eq(&'?').is_none() {
            return Ok(());
        }
        self.out.push('?');
        if matches!(self.rest.peek(), Some('P' | '<')) {
            return Ok(()); // the rest reads like letters
        }
        loop {
            match self.rest.next() {
                Some(c @ ('i' | 'm' | 's' | 'U' | '-')) => self.out.push(c),
                Some(':') => {
                    self.out.push(':');
                    return Ok(());
                }
                Some(')') => {
                    self.depth -= 1;
                    self.out.push(')');
                    return Ok(());
                }
                _ => return Err("unknown flags of a group"),
            }
        }
    }

    /// Behind `\`.
    fn escape(&mut self, in_class: bool) -> Result<Escape, &'static str> {
        let c = self.rest.next().ok_or("a backslash ends it")?;
        Ok(match c {
            'd' => Escape::Class { items: "0-9", class: "[0-9]" },
            'D' => Escape::Class { items: "[^0-9]", class: "[^0-9]" },
            'w' => Escape::Class { items: "0-9A-Za-z_", class: "[0-9A-Za-z_]" },
            'W' => Escape::Class { items: "[^0-9A-Za-z_]", class: "[^0-9A-Za-z_]" },
            's' => Escape::Class { items: r"\t\n\f\r\x20", class: r"[\t\n\f\r\x20]" },
            'S' => Escape::Class { items: r"[^\t\n\f\r\x20]", class: r"[^\t\n\f\r\x20]" },
            'p' | 'P' => Escape::Verbatim(self.property(c)?),
            'A' | 'z' if !in_class => Escape::Verbatim(format!("\\{c}")),
            'b' | 'B' if !in_class => Escape::Verbatim(format!("(?-u:\\{c})")),
            'Q' => Escape::Quoted(self.quoted()),
            'x' => Escape::Char(self.hexadecimal()?),
            '0'..='7' => Escape::Char(self.octal(c)?),
            'a' => Escape::Char('\x07'),
            'f' => Escape::Char('\x0c'),
            'n' => Escape::Char('\n'),
            'r' => Escape::Char('\r'),
            't' => Escape::Char('\t'),
            'v' => Escape::Char('\x0b'),
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => Escape::Char(c),
            _ => return Err("unknown escape"),
        })
    }

    /// Behind `\p`: a class of Unicode.
    fn property(&mut self, kind: char) -> Result<String, &'static str> {
        let mut text = format!("\\{kind}");
        let first = self.rest.next().ok_or("a class of Unicode is cut")?;
        text.push(first);
        if first == '{' {
            loop {
                let c = self.rest.next().ok_or("a class of Unicode is cut")?;
                text.push(c);
                if c == '}' {
                    break;
                }
            }
        }
        Ok(text)
    }

    /// Behind `\Q`: everything to `\E` or the end.
    fn quoted(&mut self) -> Vec<char> {
        let mut chars = Vec::new();
        while let Some(c) = self.rest.next() {
            if c == '\\' && self.rest.next_if_eq(&'E').is_some() {
                break;
            }
            chars.push(c);
        }
        chars
    }

    fn hexadecimal(&mut self) -> Result<char, &'static str> {
        const ERROR: &str = "malformed hexadecimal escape";
        let mut digits = String::new();
        if self.rest.next_if_eq(&'{').is_some() {
            loop {
                match self.rest.next() {
                    Some('}') => break,
                    Some(c) if digits.len() < 8 => digits.push(c),
                    _ => return Err(ERROR),
                }
            }
        } else {
            digits.extend(self.rest.by_ref().take(2));
            if digits.chars().count() < 2 {
                return Err(ERROR);
            }
        }
        if !digits.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(ERROR);
        }
        u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32).ok_or(ERROR)
    }

    /// An octal escape; a single digit but 0 would be a back reference, which there are none of.
    fn octal(&mut self, first: char) -> Result<char, &'static str> {
        let mut value = first.to_digit(8).unwrap_or_default();
        let mut more = 0;
        while more < 2
            && let Some(digit) = self.rest.peek().and_then(|c| c.to_digit(8))
        {
            self.rest.next();
            value = value * 8 + digit;
            more += 1;
        }
        if more == 0 && value != 0 {
            return Err("back references are not supported");
        }
        char::from_u32(value).ok_or("malformed octal escape")
    }

    /// Behind `[`.
    fn class(&mut self) -> Result<(), &'static str> {
        self.out.push('[');
        if self.rest.next_if_eq(&'^').is_some() {
            self.out.push('^');
        }
        let mut first = true;
        loop {
            let c = self.rest.next().ok_or("a class is not closed")?;
            match c {
                ']' if !first => break,
                '[' if self.rest.peek() == Some(&':') && self.posix() => {}
                '\\' => match self.escape(true)? {
                    Escape::Char(c) => self.class_char(c)?,
                    Escape::Class { items, .. } => self.out.push_str(items),
                    Escape::Verbatim(text) => self.out.push_str(&text),
                    Escape::Quoted(chars) => chars.into_iter().for_each(|c| self.push_char(c)),
                },
                c => self.class_char(c)?,
            }
            first = false;
        }
        self.out.push(']');
        Ok(())
    }

    /// In a class behind `[`, in front of `:`: copies a named class if it is one.
    fn posix(&mut self) -> bool {
        let mut ahead = self.rest.clone();
        ahead.next();
        let name: String = ahead.by_ref().take_while(|c| *c != ':').take(16).collect();
        let known = [
            "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct",
            "space", "upper", "word", "xdigit",
        ];
        if ahead.next() != Some(']') || !known.contains(&name.trim_start_matches('^')) {
            return false;
        }
        self.rest = ahead;
        self.out.push_str(&format!("[:{name}:]"));
        true
    }

    /// A character of a class, and the range that may begin with it.
    fn class_char(&mut self, low: char) -> Result<(), &'static str> {
        let mut ahead = self.rest.clone();
        let is_range = ahead.next() == Some('-') && !matches!(ahead.next(), Some(']') | None);
        self.push_char(low);
        if !is_range {
            return Ok(());
        }
        self.rest.next();
        let high = match self.rest.next().ok_or("a class is not closed")? {
            '\\' => match self.escape(true)? {
                Escape::Char(c) => c,
                Escape::Class { .. } | Escape::Verbatim(_) | Escape::Quoted(_) => {
                    return Err("a range ends with a class");
                }
            },
            c => c,
        };
        if high < low {
            return Err("a range ends before it begins");
        }
        self.out.push('-');
        self.push_char(high);
        Ok(())
    }
}

/// Reads `n}`, `n,}` or `n,m}`: the whole count with its braces, and its largest number.
fn read_count(rest: &mut Peekable<Chars<'_>>) -> Option<(String, u32)> {
    fn number(rest: &mut Peekable<Chars<'_>>) -> Option<u32> {
        let mut number = rest.next_if(char::is_ascii_digit)?.to_digit(10)?;
        while let Some(digit) = rest.next_if(char::is_ascii_digit) {
            number = number.saturating_mul(10).saturating_add(digit.to_digit(10)?);
        }
        Some(number)
    }
    let least = number(rest)?;
    match rest.next()? {
        '}' => Some((format!("{{{least}}}"), least)),
        ',' if rest.next_if_eq(&'}').is_some() => Some((format!("{{{least},}}"), least)),
        ',' => {
            let most = number(rest)?;
            (rest.next()? == '}').then(|| (format!("{{{least},{most}}}"), least.max(most)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A pattern matches whole names, with RE2's meaning where the crate's own would differ.
    #[test]
    fn meaning() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("foo.*", &["foo", "foo-1"], &["a-foo", "fo"]),
            ("a|ab", &["a", "ab"], &["abc", "b"]),
            ("(?i)TOPIC", &["topic", "ToPiC"], &["topics"]),
            (r"\Qa.b\E[0-9]+", &["a.b7"], &["axb7", "a.b"]),
            (r"\Qa.b", &["a.b"], &["axb"]),
            (r"[\d_]{2,3}", &["1_", "123"], &["1", "1234", "ab"]),
            (r"\141\x62\x{63}", &["abc"], &["abd"]),
            ("a{,2}", &["a{,2}"], &["aa"]),
            ("x{", &["x{"], &["x"]),
            ("[[a]", &["[", "a"], &["]"]),
            ("[a&&b]+", &["a&b"], &["c"]),
            ("[a~~b-]", &["~", "-"], &["c"]),
            ("[]a]", &["]", "a"], &["b"]),
            ("[^]a]", &["b"], &["]", "a"]),
            ("[[:alpha:]-]+", &["a-b"], &["a1"]),
            (r"[^\W_]+", &["aZ9"], &["a_"]),
            (r"\w+\b", &["abc"], &["ab-c"]),
            ("(?P<n>a)(?:b)", &["ab"], &["a"]),
            ("a+?b*?", &["aab"], &["c"]),
            (r"\pL+", &["abc"], &["1"]),
            (r"\<a\>", &["<a>"], &["a"]),
            ("", &[""], &["a"]),
            ("^a$", &["a"], &["ab"]),
        ];
        for (pattern, yes, no) in cases {
            let compiled = Pattern::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            for name in *yes {
                assert!(compiled.matches(name), "{pattern} should match {name}");
            }
            for name in *no {
                assert!(!compiled.matches(name), "{pattern} should not match {name}");
            }
        }
    }

    /// What RE2 does not have is refused, and so is what would be too large.
    #[test]
    fn refused() {
        for pattern in [
            "[",
            "(",
            ")",
            "a)|(b",
            "*",
            "a**",
            "a{2}{3}",
            "a{1001}",
            "(?x)a",
            "(?=a)",
            "(?<=a)b",
            r"(a)\1",
            r"\C",
            r"\Z",
            r"\k",
            "\\",
            "[z-a]",
            r"[a-\d]",
            r"\x4",
            "(((a{1000}){1000}){1000})",
        ] {
            assert!(Pattern::new(pattern).is_err(), "{pattern} should be refused");
        }
        assert!(Pattern::new(&"a".repeat(PATTERN_BYTES_MAX + 1)).is_err());
    }

    proptest! {
        /// Any text is compiled or refused, without a panic; quoted, it matches itself and nothing longer.
        #[test]
        fn never_panics(text in "[\\[\\](){}?*+a-c0-3,:\\-\\\\^|QEpx]{0,24}") {
            let _ = Pattern::new(&text);
            if !text.contains("\\E") {
                let quoted = Pattern::new(&format!("\\Q{text}\\E")).expect("quoted");
                prop_assert!(quoted.matches(&text) || text.ends_with('\\'));
                let longer = format!("{text}!");
                prop_assert!(!quoted.matches(&longer));
            }
        }
    }
}
