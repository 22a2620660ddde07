//! Recognizes rules in the syntax of rsync's filter files (`- *.tmp`). In gitignore syntax, such a rule matches only
//! very unusual names. So a file of rsync rules would silently include everything.

/// Returns advice for a line of a file, if the line looks like an rsync rule.
pub(super) fn advice_for_line(line: &str) -> Option<String> {
    let RsyncRule {
        name,
        modifiers,
        pattern,
    } = RsyncRule::of(line)?;
    let instead = match name {
        _ if modifiers.contains(['!', 'C']) => "zmove has no such rule".to_owned(),
        "-" | "exclude" | "H" | "hide" => format!("write '{pattern}'"),
        "+" | "include" | "S" | "show" => format!("write '!{pattern}'"),
        "P" | "protect" => format!("write '{pattern}', which protects it at the target too"),
        "." | "merge" => format!("use --filter-from {pattern}"),
        _ => "zmove has no such rule".to_owned(),
    };
    Some(format!(
        "it is a rule of rsync: {instead}, or '\\{line}' if this is a name (the last rule that matches decides)"
    ))
}

/// Returns advice for a pattern on the command line, where rsync accepts only the signs `-` and `+`.
pub(super) fn advice_for_pattern(pattern: &str) -> Option<String> {
    let is_signed = pattern.starts_with("- ") || pattern.starts_with("+ ");
    is_signed.then(|| advice_for_line(pattern)).flatten()
}

/// A rule of the form `NAME PATTERN` or `NAME,MODIFIERS PATTERN`. After a one-letter name, the comma may be missing.
#[derive(Debug)]
struct RsyncRule<'a> {
    name: &'a str,
    modifiers: &'a str,
    pattern: &'a str,
}

impl<'a> RsyncRule<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let (head, pattern) = match line {
            "-C" | ":C" => (line, ""),
            // rsync also allows `_` as a separator, but after a letter it is more likely to be part of a name.
            _ if line.starts_with("-_") || line.starts_with("+_") => (&line[..1], &line[2..]),
            _ => line.split_once(' ').filter(|(_, rest)| !rest.is_empty())?,
        };
        let (name, modifiers) = match head.split_once(',') {
            Some(split) => split,
            None if LONG.contains(&head) => (head, ""),
            None => head.split_at_checked(1)?,
        };
        let known = match name {
            "-" | "+" | "exclude" | "include" => "/!Crspx",
            "H" | "S" | "P" | "R" | "hide" | "show" | "protect" | "risk" => "/!p",
            "." | ":" | "merge" | "dir-merge" => "/!Crspx-+enw",
            _ => return None,
        };
        modifiers
            .chars()
            .all(|modifier| known.contains(modifier))
            .then_some(Self {
                name,
                modifiers,
                pattern,
            })
    }
}

const LONG: [&str; 8] = [
    "exclude",
    "include",
    "hide",
    "show",
    "protect",
    "risk",
    "merge",
    "dir-merge",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_of_rsync_gets_advice() {
        for (line, instead) in [
            ("- *.tmp", "write '*.tmp'"),
            ("-_*.tmp", "write '*.tmp'"),
            ("-/ /x", "write '/x'"),
            ("-,s x y", "write 'x y'"),
            ("exclude x", "write 'x'"),
            ("H x", "write 'x'"),
            ("+ */", "write '!*/'"),
            ("include,r x", "write '!x'"),
            (
                "P .snapshot/",
                "write '.snapshot/', which protects it at the target too",
            ),
            (". more", "use --filter-from more"),
            (":n- .rules", "zmove has no such rule"),
            (":C", "zmove has no such rule"),
            ("-C", "zmove has no such rule"),
            ("-! x", "zmove has no such rule"),
            ("risk x", "zmove has no such rule"),
        ] {
            let advice = advice_for_line(line).unwrap_or_else(|| panic!("{line}"));
            let expected = format!("it is a rule of rsync: {instead}, or '\\{line}' if");
            assert!(advice.starts_with(&expected), "{advice}");
        }
    }

    #[test]
    fn names_get_none() {
        for line in [
            "",
            "-",
            "- ",
            "+",
            "-x",
            "--x y",
            "\\- x",
            "\\+ x",
            "H",
            "H_x",
            "Hans x",
            "-ab x",
            "excluded x",
            "exclude",
            "é x",
            "x y",
            ":q y",
            "...",
        ] {
            assert_eq!(advice_for_line(line), None, "{line}");
        }
        assert_eq!(advice_for_pattern("R x"), None);
        assert!(advice_for_pattern("+ x").is_some());
    }
}
