//! Translates patterns in gitignore syntax to the syntax of `globset`. A test compares the results with git.
//!
//! The translation handles the differences between `globset` and git: in git, braces are literal, classes never match a
//! `/`, and `**` is special only between slashes. Git accepts patterns that can never match (`a//b`, `[z-a]`, an
//! unclosed `[`), but zmove refuses them. One difference remains: if letters precede a `**` (`/d**`), git matches
//! across slashes, contrary to its manual, and zmove does not. Both match bytes, so names need not be UTF-8.
//!
//! The crate `ignore` also parses gitignore lines and would need less code here. But it passes them to `globset` almost
//! unchanged, so that braces mean alternatives, and it silently accepts patterns that can never match. It also checks
//! one kind of entry at a time. This module checks a name for all kinds at once, so an excluded name is never looked
//! up.

mod class;

use globset::{Glob, GlobBuilder};
use thiserror::Error;

use super::rsync_rule::{advice_for_line, advice_for_pattern};
use class::Class;

/// The effect of a rule on matching entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Matching entries are excluded.
    Exclude,
    /// Matching entries are included again.
    Include,
}

/// One line of a gitignore file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub(super) effect: Effect,
    pub(super) applies_to: AppliesTo,
    pub(super) glob: Glob,
    /// The pattern as given, without the `!` of an include.
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
    /// The pattern is empty or can never match.
    #[error("it matches nothing")]
    Nothing,
    /// The pattern starts with `#`. On the command line, this cannot be meant as a comment.
    #[error("a '#' at its start makes it a comment: write '\\#'")]
    Comment,
    /// The pattern of an include starts with `!`, which would turn it into an exclude.
    #[error("a '!' at its start inverts it: use --exclude, or write '\\!'")]
    NegatedInclude,
    /// The pattern is a rule in rsync syntax. In gitignore syntax, such a rule would match only very unusual names. The
    /// value is advice for the user.
    #[error("{0}")]
    RsyncRule(String),
    /// The pattern ends in a backslash.
    #[error("nothing follows the last '\\'")]
    Dangling,
    /// A `[` has no closing `]`.
    #[error("a '[' is not closed: write '\\[' for the character")]
    Unclosed,
    /// The end of a range is lower than its start.
    #[error("the range '{0}-{1}' is reversed")]
    ReversedRange(char, char),
    /// A named class (`[:name:]`) does not exist.
    #[error("unknown class '[:{0}:]'")]
    UnknownClass(String),
    /// A class contains a multi-byte character, but patterns match bytes.
    #[error("'{0}' is not allowed in '[]', which matches single bytes")]
    NotAscii(char),
    /// The pattern is not valid UTF-8.
    #[error("it is not UTF-8: write '?' for each byte that is not UTF-8")]
    NotUtf8,
    /// The pattern, or the patterns together, are too large to compile.
    #[error("it cannot be compiled: {0}")]
    Compile(globset::Error),
}

impl Rule {
    /// Parses a pattern that was given as an option.
    ///
    /// # Errors
    /// Returns a [`PatternError`] if the pattern cannot be used.
    pub fn new(effect: Effect, pattern: &[u8]) -> Result<Self, PatternError> {
        let pattern = parse_utf8(pattern)?;
        if let Some(advice) = advice_for_pattern(pattern) {
            return Err(PatternError::RsyncRule(advice));
        }
        match (pattern.as_bytes().first(), effect) {
            (Some(b'#'), _) => Err(PatternError::Comment),
            (Some(b'!'), Effect::Include) => Err(PatternError::NegatedInclude),
            (Some(b'!'), Effect::Exclude) => Self::compile(Effect::Include, &pattern[1..]),
            _ => Self::compile(effect, pattern),
        }
    }

    /// Parses a line of a file. Returns `None` if the line is blank or a comment.
    ///
    /// # Errors
    /// Returns a [`PatternError`] if the pattern cannot be used.
    pub fn from_line(line: &[u8]) -> Result<Option<Self>, PatternError> {
        let line = parse_utf8(line)?;
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

    /// Creates a rule from the pattern and effect of an existing rule.
    ///
    /// # Errors
    /// Returns a [`PatternError`] if the pattern cannot be used.
    pub fn recreate(effect: Effect, pattern: &[u8]) -> Result<Self, PatternError> {
        Self::compile(effect, parse_utf8(pattern)?)
    }

    /// Returns the effect on matching entries.
    #[must_use]
    pub const fn effect(&self) -> Effect {
        self.effect
    }

    /// Returns the pattern as given, without the leading `!` of an include.
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

fn parse_utf8(bytes: &[u8]) -> Result<&str, PatternError> {
    std::str::from_utf8(bytes).map_err(|_| PatternError::NotUtf8)
}

/// Removes trailing spaces, which are ignored unless a backslash precedes them.
fn without_trailing_spaces(line: &str) -> &str {
    let trimmed = line.trim_end_matches(' ');
    let backslashes = trimmed.len() - trimmed.trim_end_matches('\\').len();
    let escaped = backslashes % 2 == 1 && trimmed.len() < line.len();
    &line[..trimmed.len() + usize::from(escaped)]
}

/// Translates a pattern. A pattern without a slash matches names at any depth. A pattern with a slash matches whole
/// paths.
fn translate(body: &str) -> Result<String, PatternError> {
    let anchored = body.contains('/');
    let body = body.strip_prefix('/').unwrap_or(body);
    // No path contains such a component, so the pattern could never match.
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
        assert_eq!(refused(b"[z-a]"), PatternError::ReversedRange('z', 'a'));
        assert_eq!(
            refused(b"[[:what:]]"),
            PatternError::UnknownClass("what".into())
        );
        assert_eq!(refused("[é]".as_bytes()), PatternError::NotAscii('é'));
        assert_eq!(refused(b"caf\xe9"), PatternError::NotUtf8);
        assert_eq!(
            Rule::new(Effect::Include, b"!x"),
            Err(PatternError::NegatedInclude)
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
