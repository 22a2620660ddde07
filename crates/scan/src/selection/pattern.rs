//! Patterns in gitignore's syntax, translated to `globset`'s. A test compares them with git itself.
//!
//! Where `globset` differs from git the pattern is rewritten: braces stand for themselves, classes never match a `/`,
//! and `**` is special between slashes only. Patterns that git accepts and then never matches (`a//b`, `[z-a]`, an open
//! `[`) are refused. One difference is left: where letters stand before a `**` (`/d**`), git matches across slashes
//! against its own manual, and zmove does not. Both match bytes, so that names need not be UTF-8.
//!
//! The crate `ignore` reads such lines too, and would be less code. But it hands them to `globset` nearly as they are,
//! so that braces are alternatives; it silently accepts patterns that can match nothing; and it answers for one kind at
//! a time. Here one question answers whether a name is wanted as any kind of entry, and a name that is not is never
//! looked up.

mod class;

use globset::{Glob, GlobBuilder};
use thiserror::Error;

use super::rsync_rule::{advice_for_line, advice_for_pattern};
use class::Class;

/// The effect of a rule on the entries that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Matching entries are left out.
    Exclude,
    /// Matching entries are taken in again.
    Include,
}

/// One line of a gitignore file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub(super) effect: Effect,
    pub(super) applies_to: AppliesTo,
    pub(super) glob: Glob,
    /// The pattern as it was given, without the sign of an include.
    pattern: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AppliesTo {
    All,
    Directories,
}

/// The reason why a pattern cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PatternError {
    /// The pattern is empty or can match no name.
    #[error("it matches nothing")]
    Nothing,
    /// The pattern begins with `#`: on the command line a comment is certainly a mistake.
    #[error("a '#' at its start makes it a comment: write '\\#'")]
    Comment,
    /// The pattern of an include begins with `!`, which would make it an exclude.
    #[error("a '!' at its start turns it around: use an exclude, or write '\\!'")]
    TurnedAround,
    /// A rule in the syntax of rsync, with advice. As a pattern it would be a name that hardly any file has.
    #[error("{0}")]
    RsyncRule(String),
    /// The pattern ends in a backslash.
    #[error("nothing follows the last '\\'")]
    Dangling,
    /// A `[` without its `]`.
    #[error("a '[' is not closed: write '\\[' for the character")]
    Unclosed,
    /// A range ends before it begins.
    #[error("the range '{0}-{1}' is the wrong way round")]
    Range(char, char),
    /// A named class (`[:name:]`) does not exist.
    #[error("there is no class '[:{0}:]'")]
    Named(String),
    /// A class holds a character of several bytes: matching goes by bytes.
    #[error("'{0}' cannot stand in '[]', which is for single bytes")]
    NotAscii(char),
    /// The pattern is not text.
    #[error("it is not UTF-8: write '?' for each other byte")]
    NotUtf8,
    /// The pattern, or all patterns together, are too large to compile.
    #[error("it cannot be compiled: {0}")]
    Compile(globset::Error),
}

impl Rule {
    /// The rule of a pattern that has been given by itself.
    ///
    /// # Errors
    /// [`PatternError`] when the pattern cannot be used.
    pub fn new(effect: Effect, pattern: &[u8]) -> Result<Self, PatternError> {
        let pattern = text(pattern)?;
        if let Some(advice) = advice_for_pattern(pattern) {
            return Err(PatternError::RsyncRule(advice));
        }
        match (pattern.as_bytes().first(), effect) {
            (Some(b'#'), _) => Err(PatternError::Comment),
            (Some(b'!'), Effect::Include) => Err(PatternError::TurnedAround),
            (Some(b'!'), Effect::Exclude) => Self::compile(Effect::Include, &pattern[1..]),
            _ => Self::compile(effect, pattern),
        }
    }

    /// The rule in one line of a file; `None` where the line is blank or a comment.
    ///
    /// # Errors
    /// [`PatternError`] when the pattern cannot be used.
    pub fn from_line(line: &[u8]) -> Result<Option<Self>, PatternError> {
        let line = text(line)?;
        let line = without_trailing_spaces(line.strip_suffix('\r').unwrap_or(line));
        if let Some(advice) = advice_for_line(line) {
            return Err(PatternError::RsyncRule(advice));
        }
        match line.as_bytes().first() {
            None | Some(b'#') => Ok(None),
            Some(b'!') => Self::compile(Effect::Include, &line[1..]).map(Some),
            _ => Self::compile(Effect::Exclude, line).map(Some),
        }
    }

    /// The rule of a pattern and an effect as another rule has them.
    ///
    /// # Errors
    /// [`PatternError`] when the pattern cannot be used.
    pub fn again(effect: Effect, pattern: &[u8]) -> Result<Self, PatternError> {
        Self::compile(effect, text(pattern)?)
    }

    /// The effect on entries that match.
    #[must_use]
    pub const fn effect(&self) -> Effect {
        self.effect
    }

    /// The pattern as it was given, without a sign that turns it around.
    #[must_use]
    pub const fn pattern(&self) -> &str {
        &self.pattern
    }

    fn compile(effect: Effect, pattern: &str) -> Result<Self, PatternError> {
        let (body, applies_to) = match pattern.strip_suffix('/') {
            Some(body) => (body, AppliesTo::Directories),
            None => (pattern, AppliesTo::All),
        };
        let glob = translate(body)?;
        let glob = GlobBuilder::new(&glob)
            .literal_separator(true)
            .backslash_escape(true)
            .build();
        Ok(Self {
            effect,
            applies_to,
            glob: glob.map_err(PatternError::Compile)?,
            pattern: pattern.into(),
        })
    }
}

fn text(bytes: &[u8]) -> Result<&str, PatternError> {
    std::str::from_utf8(bytes).map_err(|_| PatternError::NotUtf8)
}

/// Removes the spaces at the end, which do not count unless a backslash stands before them.
fn without_trailing_spaces(line: &str) -> &str {
    let trimmed = line.trim_end_matches(' ');
    let backslashes = trimmed.len() - trimmed.trim_end_matches('\\').len();
    let escaped = backslashes % 2 == 1 && trimmed.len() < line.len();
    &line[..trimmed.len() + usize::from(escaped)]
}

/// Translates a pattern: without a slash it fits a name at any depth, with one the whole path.
fn translate(body: &str) -> Result<String, PatternError> {
    let anchored = body.contains('/');
    let body = body.strip_prefix('/').unwrap_or(body);
    // No path that rules see has such names.
    if body.split('/').any(|name| matches!(name, "" | "." | "..")) {
        return Err(PatternError::Nothing);
    }
    let mut glob = if anchored {
        String::new()
    } else {
        "**/".to_owned()
    };
    let mut rest = body;
    while let Some(character) = rest.chars().next() {
        let after = &rest[character.len_utf8()..];
        rest = match character {
            '*' => {
                let after = after.trim_start_matches('*');
                let at_start =
                    rest.len() == body.len() || body[..body.len() - rest.len()].ends_with('/');
                let whole_component = at_start && (after.is_empty() || after.starts_with('/'));
                let several = rest.len() - after.len() > 1;
                glob.push_str(if anchored && several && whole_component {
                    "**"
                } else {
                    "*"
                });
                after
            }
            '[' => {
                let (class, after) = Class::read(after)?;
                class.write(&mut glob)?;
                after
            }
            '\\' => {
                let literal = after.chars().next().ok_or(PatternError::Dangling)?;
                glob.extend(['\\', literal]);
                &after[literal.len_utf8()..]
            }
            '{' | '}' => {
                glob.extend(['\\', character]);
                after
            }
            _ => {
                glob.push(character);
                after
            }
        };
    }
    // A trailing `/**` means the contents of the directory, not the directory itself.
    if glob.ends_with("/**") {
        glob.push_str("/*");
    }
    Ok(glob)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn glob(pattern: &str) -> String {
        Rule::new(Effect::Exclude, pattern.as_bytes())
            .unwrap()
            .glob
            .glob()
            .to_owned()
    }

    #[test]
    fn a_slash_anchors_and_braces_are_characters() {
        assert_eq!(glob("*.o"), "**/*.o");
        assert_eq!(glob("cache/"), "**/cache");
        assert_eq!(glob("/top"), "top");
        assert_eq!(glob("a/b"), "a/b");
        assert_eq!(glob("{a,b}"), "**/\\{a,b\\}");
    }

    #[test]
    fn stars_between_slashes_span_directories() {
        assert_eq!(glob("**/a"), "**/a");
        assert_eq!(glob("a/**/b"), "a/**/b");
        assert_eq!(glob("a/**"), "a/**/*");
        assert_eq!(glob("a/***/b"), "a/**/b");
        assert_eq!(glob("a/x**y"), "a/x*y");
        assert_eq!(glob("**"), "**/*");
    }

    #[test]
    fn classes_match_no_slash() {
        assert_eq!(glob("[+-1]"), "**/{\\+,\\,,\\-,\\.,\\0,\\1}");
        assert_eq!(glob("[!a-]"), "**/[^/a-]");
        assert_eq!(glob("[^]^!]"), "**/[^]!/^]");
        assert_eq!(glob("[[]"), "**/\\[");
        assert_eq!(glob("[\\]]"), "**/\\]");
        assert_eq!(glob("[[:digit:]]").len(), "**/{}".len() + 10 * 2 + 9);
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        let refused = |pattern: &[u8]| Rule::new(Effect::Exclude, pattern).unwrap_err();
        assert_eq!(refused(b""), PatternError::Nothing);
        assert_eq!(refused(b"/"), PatternError::Nothing);
        for pattern in ["a//b", "./a", "a/./b", "../a", "."] {
            assert_eq!(refused(pattern.as_bytes()), PatternError::Nothing);
        }
        assert_eq!(refused(b"**//"), PatternError::Nothing);
        assert_eq!(refused(b"[/]"), PatternError::Nothing);
        assert_eq!(refused(b"# x"), PatternError::Comment);
        assert_eq!(refused(b"x\\"), PatternError::Dangling);
        assert_eq!(refused(b"x[a"), PatternError::Unclosed);
        assert_eq!(refused(b"[]"), PatternError::Unclosed);
        assert_eq!(refused(b"[z-a]"), PatternError::Range('z', 'a'));
        assert_eq!(refused(b"[[:what:]]"), PatternError::Named("what".into()));
        assert_eq!(refused("[é]".as_bytes()), PatternError::NotAscii('é'));
        assert_eq!(refused(b"caf\xe9"), PatternError::NotUtf8);
        assert_eq!(
            Rule::new(Effect::Include, b"!x"),
            Err(PatternError::TurnedAround)
        );
    }

    #[test]
    fn lines_have_comments_blanks_and_signs() {
        let line = |line: &str| Rule::from_line(line.as_bytes()).unwrap();
        assert_eq!(
            [line(""), line("  "), line("\r"), line("# x")],
            [None, None, None, None]
        );
        assert_eq!(
            line("!x\r"),
            Some(Rule::new(Effect::Include, b"x").unwrap())
        );
        assert_eq!(
            line("\\!x  "),
            Some(Rule::new(Effect::Exclude, b"\\!x").unwrap())
        );
        assert_eq!(
            line("x\\  "),
            Some(Rule::new(Effect::Exclude, b"x\\ ").unwrap())
        );
        assert_eq!(
            line("x\\\\  "),
            Some(Rule::new(Effect::Exclude, b"x\\\\").unwrap())
        );
    }
}
