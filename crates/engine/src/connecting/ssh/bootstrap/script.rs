//! The shell scripts of the far end.
//!
//! [`Scripts::start`] is the argument of ssh, which the login shell parses. The other scripts are lines of its standard
//! input. **Invariant:** the login shell sees one pair of single quotes without `'`, `!`, a backslash or a line break
//! between them, which sh, bash, fish and tcsh understand in the same way. A line runs only if it begins with the token
//! of this session, so that leftover bytes of an upload never run.

use zmove_wire::PROTOCOL_VERSION;

/// The prefix of the scripts' lines. No output of a login shell starts with it.
pub(super) const MARK: &str = "zmove-far ";

/// The scripts for one session.
pub(super) struct Scripts {
    /// Names and values of the placeholders.
    values: [(&'static str, String); 5],
}

/// A directory of the host for the helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Cache,
    Runtime,
}

impl Scripts {
    /// Creates the scripts for a helper with this digest in hexadecimal digits and this number of bytes.
    pub(super) fn new(digest: &str, bytes: usize, token: &str) -> Self {
        let release = env!("CARGO_PKG_VERSION");
        let key = format!("{release}-{}", &digest[..KEY_DIGITS]);
        Self {
            values: [
                ("@PROTOCOL@", PROTOCOL_VERSION.to_string()),
                ("@KEY@", key),
                ("@DIGEST@", digest.to_owned()),
                ("@BYTES@", bytes.to_string()),
                ("@TOKEN@", token.to_owned()),
            ],
        }
    }

    /// Returns the command that starts zmove or a helper, or waits for scripts.
    pub(super) fn start(&self) -> String {
        format!("sh -c '{}'", self.fill(START))
    }

    /// Returns the definitions that the scripts below use.
    pub(super) fn functions(&self) -> String {
        self.line(FUNCTIONS)
    }

    /// Returns the script that reads back an existing helper.
    pub(super) fn check(&self) -> String {
        self.line(r#"back "$f""#)
    }

    /// Returns the script that receives the helper.
    pub(super) fn store(&self, place: Place) -> String {
        let base = match place {
            Place::Cache => "$HOME/.cache",
            Place::Runtime => "$XDG_RUNTIME_DIR",
        };
        self.line(&STORE.replace("@BASE@", base))
    }

    /// Returns the script that ends a [`store`](Self::store) after this side has compared the file.
    pub(super) fn settle(&self, is_same: bool) -> String {
        self.line(if is_same { "finish" } else { DAMAGED })
    }

    /// Returns the script that replaces the shell by the helper.
    pub(super) fn start_helper(&self) -> String {
        self.line(r#"exec "$f" receive"#)
    }

    fn line(&self, script: &str) -> String {
        format!("{}\n", self.fill(&format!("@TOKEN@ {script}")))
    }

    /// Returns a script as one line.
    fn fill(&self, script: &str) -> String {
        let script = script.replace('\n', " ");
        let values = self.values.iter();
        values.fold(script, |text, (name, value)| text.replace(name, value))
    }
}

/// `own PATH PATTERN` checks the owner of a path, and its type and mode as `ls` prints them. So no link fits. `safe`
/// checks the home directory if `$b` is below it. Whoever can write there could exchange `.cache` after all checks.
const START: &str = r#"own() { case $(ls -ldn "$1" 2>/dev/null) in $2*) test -O "$1";; *) false;; esac; };
safe() { case $b in "$HOME"/*) own "$HOME/." "$o";; esac; };
sum() { { sha256sum || openssl dgst -sha256; } 2>/dev/null; };
case $(zmove --version 2>/dev/null </dev/null) in *"protocol version @PROTOCOL@") exec zmove receive;; esac;
s=missing; o="d????-??-"; p="drwx--[S-]---";
for b in "$HOME/.cache" "$XDG_RUNTIME_DIR"; do d=$b/zmove/@KEY@; f=$d/zmove-far;
if safe && own "$b" "$o" && own "$b/zmove" "$p" && own "$d" "$p" && own "$f" "-rwx------"; then
case $(sum <"$f") in *@DIGEST@*) "$f" --version >/dev/null 2>&1 </dev/null && exec "$f" receive;;
"") s=unchecked; break;; esac; fi; done;
test $s = unchecked || f=$HOME/.cache/zmove/@KEY@/zmove-far;
echo; echo "zmove-far $s $(uname -sm) $f"; read -r q;
while read -r k s; do test "$k" = @TOKEN@ && eval "$s"; done"#;

/// `no REASON` reports a refusal. `make DIRECTORY PATTERN` creates a directory. `back FILE` sends a file to the near
/// end. `get` receives the helper. `finish` tries it, renames it, and removes all but the last three versions.
const FUNCTIONS: &str = r#"umask 077;
no() { test -n "$t" && rm -f "$t"; set -f; echo; echo zmove-far refused $*; set +f; };
make() { e=$( { test -d "$1" || mkdir "$1"; } 2>&1) || { no "$e"; return 1; };
own "$1" "$2" || { no "$1 must be a directory, not a link, that belongs to this user, with mode $3"; return 1; }; };
back() { if test "$(wc -c <"$1")" -eq @BYTES@ 2>/dev/null; then echo; echo zmove-far readback; cat "$1";
else no "$d: ${e:-the file is damaged}"; fi; };
get() { find "$d" -name "part.*" -mmin +60 -exec rm -f {} + 2>/dev/null; echo; echo zmove-far send;
e=$(head -c @BYTES@ | { { cat >"$t"; } || { cat >/dev/null; false; }; } 2>&1);
case $(sum <"$t") in *@DIGEST@*) finish;; "") back "$t";; *) no "$d: ${e:-the file is damaged}";; esac; };
finish() { chmod 700 "$t"; e=$("$t" --version 2>&1 </dev/null) || { no "$d: ${e:-the program was killed}"; return; };
e=$(mv -f "$t" "$f" 2>&1) || { no "$e"; return; };
(cd "$b/zmove" && ls -1t | while read -r x; do
case $x in [0-9]*-????????????????) own "$x" "$p" && echo "$x";; esac; done | tail -n +4 |
while read -r x; do rm -f "$x/zmove-far" "$x"/part.*; rmdir "$x"; done) 2>/dev/null;
echo; echo zmove-far stored; }"#;

const STORE: &str = r#"b=@BASE@; d=$b/zmove/@KEY@; f=$d/zmove-far; t=$d/part.@TOKEN@;
if test -z "$b"; then t=; no "XDG_RUNTIME_DIR is not set";
elif ! safe; then t=; no "$HOME must belong to this user, with mode 700 or 755";
elif make "$b" "$o" "700 or 755" && make "$b/zmove" "$p" 700 && make "$d" "$p" 700; then get; fi"#;

const DAMAGED: &str = r#"no "$d: the file is damaged""#;

/// Hexadecimal digits of the digest in the name of the directory.
const KEY_DIGITS: usize = 16;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn scripts() -> Scripts {
        Scripts::new(&"ab".repeat(32), 7, "0123456789abcdef")
    }

    #[test]
    fn every_login_shell_passes_the_command_on_unchanged() {
        let start = scripts().start();
        let inner = start.strip_prefix("sh -c '").unwrap();
        let inner = inner.strip_suffix('\'').unwrap();
        assert!(!inner.contains(['\'', '!', '\\', '\n', '@']), "{inner}");
    }

    #[test]
    fn scripts_are_single_lines_that_a_shell_can_parse() {
        let scripts = scripts();
        let lines = [
            scripts.functions(),
            scripts.check(),
            scripts.store(Place::Cache),
            scripts.store(Place::Runtime),
            scripts.settle(true),
            scripts.settle(false),
            scripts.start_helper(),
        ];
        for line in lines {
            assert_eq!(line.find('\n'), Some(line.len() - 1), "{line}");
            let script = line.strip_prefix("0123456789abcdef ").unwrap();
            assert!(!script.contains("@"), "{script}");
            let parsed = Command::new("sh").args(["-n", "-c", script]).output();
            let parsed = parsed.unwrap();
            assert!(parsed.status.success(), "{script}: {parsed:?}");
        }
    }
}
