//! Patterns as gitignore writes them, handed to `globset` in its own syntax. A test holds them against git
//! itself.
//!
//! What `globset` reads otherwise than git is rewritten: braces stand for themselves, classes never match a
//! `/`, and `**` is special between slashes only. Patterns that git takes and then never matches (`a//b`,
//! `[z-a]`, an open `[`) are refused. One difference is left: where letters stand before a `**` (`/d**`), git
//! matches across slashes against its own manual, and zmove does not. Both match bytes, so that names need
//! not be UTF-8.
//!
//! The crate `ignore` reads such lines too, and would be less code. But it gives them to `globset` nearly as
//! they are, so that braces are alternatives; it takes what can match nothing without a word; and it answers
//! for one kind at a time. Here one question tells whether a name is wanted as anything, and a name that is
//! not is never looked up.

mod class;

use globset::{Glob, GlobBuilder};
use thiserror::Error;

use class::Class;

/// Whether a rule leaves out or takes in.
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AppliesTo {
    All,
    Directories,
}

/// Why a pattern cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PatternError {
    /// The pattern is empty or can match no name.
    #[error("it matches nothing")]
    Nothing,
    /// On the command line a comment is certainly a mistake.
    #[error("a '#' at its start makes it a comment: write '\\#'")]
    Comment,
    /// An include that says `!` would be an exclude.
    #[error("a '!' at its start turns it around: use an exclude, or write '\\!'")]
    TurnedAround,
    /// The pattern ends in a backslash.
    #[error("nothing follows the last '\\'")]
    Dangling,
    /// A `[` without its `]`.
    #[error("a '[' is not closed: write '\\[' for the character")]
    Unclosed,
    /// A range that ends before it begins.
    #[error("the range '{0}-{1}' is the wrong way round")]
    Range(char, char),
    /// An unknown name of a class.
    #[error("there is no class '[:{0}:]'")]
    Named(String),
    /// Matching goes by bytes, and a character in a class is one.
    #[error("'{0}' cannot stand in '[]', which is for single bytes")]
    NotAscii(char),
    /// The pattern is not text.
    #[error("it is not UTF-8: write '?' for each other byte")]
    NotUtf8,
    /// All patterns together, or this one, are too much.
    #[error("it cannot be compiled: {0}")]
    Compile(globset::Error),
}

impl Rule {
    /// The rule of a pattern that has been given by itself.
    ///
    /// # Errors
    /// [`PatternError`] when it has no meaning.
    pub fn new(effect: Effect, pattern: &[u8]) -> Result<Self, PatternError> {
        let pattern = text(pattern)?;
        match (pattern.as_bytes().first(), effect) {
            (Some(b'#'), _) => Err(PatternError::Comment),
            (Some(b'!'), Effect::Include) => Err(PatternError::TurnedAround),
            (Some(b'!'), Effect::Exclude) => Self::compile(Effect::Include, &pattern[1..]),
            _ => Self::compile(effect, pattern),
        }
    }

    /// The rule in one line of a file; none where the line is blank or a comment.
    ///
    /// # Errors
    /// [`PatternError`] when it has no meaning.
    pub fn from_line(line: &[u8]) -> Result<Option<Self>, PatternError> {
        let line = text(line)?;
        let line = without_trailing_spaces(line.strip_suffix('\r').unwrap_or(line));
        match line.as_bytes().first() {
            None | Some(b'#') => Ok(None),
            Some(b'!') => Self::compile(Effect::Include, &line[1..]).map(Some),
            _ => Self::compile(Effect::Exclude, line).map(Some),
        }
    }

    fn compile(effect: Effect, pattern: &str) -> Result<Self, PatternError> {
        let (body, applies_to) = match pattern.strip_suffix('/') {
            Some(body) => (body, AppliesTo::Directories),
            None => (pattern, AppliesTo::All),
        };
        let glob = translate(body)?;
        let glob = GlobBuilder::new(&glob).literal_separator(true).backslash_escape(true).build();
        Ok(Self { effect, applies_to, glob: glob.map_err(PatternError::Compile)? })
    }
}

fn text(bytes: &[u8]) -> Result<&str, PatternError> {
    std::str::from_utf8(bytes).map_err(|_| PatternError::NotUtf8)
}

/// Spaces at the end do not count, unless a backslash stands before them.
fn without_trailing_spaces(line: &str) -> &str {
    let trimmed = line.trim_end_matches(' ');
    let backslashes = trimmed.len() - trimmed.trim_end_matches('\\').len();
    let escaped = backslashes % 2 == 1 && trimmed.len() < line.len();
    &line[..trimmed.len() + usize::from(escaped)]
}

/// A pattern without a slash fits a name at any depth, another the whole path.
fn translate(body: &str) -> Result<String, PatternError> {
    let anchored = body.contains('/');
    let body = body.strip_prefix('/').unwrap_or(body);
    if body.is_empty() || body.starts_with('/') || body.ends_with('/') || body.contains("//") {
        return Err(PatternError::Nothing);
    }
    let mut glob = if anchored { String::new() } else { "**/".to_owned() };
    let mut rest = body;
    while let Some(character) = rest.chars().next() {
        let after = &rest[character.len_utf8()..];
        rest = match character {
            '*' => {
                let after = after.trim_start_matches('*');
                let at_start = rest.len() == body.len() || body[..body.len() - rest.len()].ends_with('/');
                let whole_component = at_start && (after.is_empty() || after.starts_with('/'));
                let several = rest.len() - after.len() > 1;
                glob.push_str(if anchored && several && whole_component { "**" } else { "*" });
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
    // what is in the directory, not the directory
    if glob.ends_with("/**") {
        glob.push_str("/*");
    }
    Ok(glob)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn glob(pattern: &str) -> String {
        Rule::new(Effect::Exclude, pattern.as_bytes()).unwrap().glob.glob().to_owned()
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
        assert_eq!(refused(b"a//b"), PatternError::Nothing);
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
        assert_eq!(Rule::new(Effect::Include, b"!x"), Err(PatternError::TurnedAround));
    }

    #[test]
    fn lines_have_comments_blanks_and_signs() {
        let line = |line: &str| Rule::from_line(line.as_bytes()).unwrap();
        assert_eq!([line(""), line("  "), line("\r"), line("# x")], [None, None, None, None]);
        assert_eq!(line("!x\r"), Some(Rule::new(Effect::Include, b"x").unwrap()));
        assert_eq!(line("\\!x  "), Some(Rule::new(Effect::Exclude, b"\\!x").unwrap()));
        assert_eq!(line("x\\  "), Some(Rule::new(Effect::Exclude, b"x\\ ").unwrap()));
        assert_eq!(line("x\\\\  "), Some(Rule::new(Effect::Exclude, b"x\\\\").unwrap()));
    }
}
