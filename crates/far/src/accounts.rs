//! The users and groups of this host, from `getent`.
//!
//! The C library of a static program cannot load the modules with which a host asks LDAP or SSSD for its users. The
//! host's own `getent` can. Without it, no names are known, and numeric ids are used.

use std::process::{Command, Stdio};

use zmove_types::Accounts;

/// The user and group database of this host. Each lookup starts a process.
#[derive(Clone, Copy, Debug)]
pub struct GetentAccounts;

impl Accounts for GetentAccounts {
    fn user_name(&self, id: u32) -> Option<String> {
        Some(entry("passwd", &id.to_string())?.name)
    }

    fn group_name(&self, id: u32) -> Option<String> {
        Some(entry("group", &id.to_string())?.name)
    }

    fn user_id(&self, name: &str) -> Option<u32> {
        by_name("passwd", name)
    }

    fn group_id(&self, name: &str) -> Option<u32> {
        by_name("group", name)
    }
}

/// An entry of a database.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    name: String,
    id: u32,
}

fn by_name(database: &str, name: &str) -> Option<u32> {
    // getent takes digits as an id, and a word with a hyphen as an option.
    if name.starts_with('-') || name.parse::<u32>().is_ok() {
        return None;
    }
    let found = entry(database, name)?;
    (found.name == name).then_some(found.id)
}

fn entry(database: &str, key: &str) -> Option<Entry> {
    let mut getent = Command::new("getent");
    getent.args([database, key]);
    getent.stdin(Stdio::null()).stderr(Stdio::null());
    let answered = getent.output().ok()?;
    parse(&String::from_utf8(answered.stdout).ok()?)
}

/// Parses `NAME:PASSWORD:ID:…`.
fn parse(line: &str) -> Option<Entry> {
    let mut fields = line.trim_end().split(':');
    let name = fields.next()?.to_owned();
    let id = fields.nth(1)?.parse().ok()?;
    Some(Entry { name, id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_and_numbers_are_no_names() {
        assert_eq!(GetentAccounts.user_name(0).as_deref(), Some("root"));
        assert_eq!(GetentAccounts.group_name(0).as_deref(), Some("root"));
        assert_eq!(GetentAccounts.user_id("root"), Some(0));
        assert_eq!(GetentAccounts.user_id("0"), None);
        assert_eq!(GetentAccounts.user_id("--help"), None);
        assert_eq!(GetentAccounts.group_id("no such group"), None);
    }
}
