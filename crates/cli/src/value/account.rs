//! Users and groups, as typed on the command line and as defined on this host.

use std::str::FromStr;

use nix::unistd::{Gid, Group, Uid, User};
use zmove_types::{Account, Accounts};
use zmove_wire::{AccountMatch, Mapping};

/// The user and group database of this host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SystemAccounts;

impl Accounts for SystemAccounts {
    fn user_name(&self, id: u32) -> Option<String> {
        User::from_uid(Uid::from_raw(id))
            .ok()
            .flatten()
            .map(|user| user.name)
    }

    fn group_name(&self, id: u32) -> Option<String> {
        Group::from_gid(Gid::from_raw(id))
            .ok()
            .flatten()
            .map(|group| group.name)
    }

    fn user_id(&self, name: &str) -> Option<u32> {
        User::from_name(name)
            .ok()
            .flatten()
            .map(|user| user.uid.as_raw())
    }

    fn group_id(&self, name: &str) -> Option<u32> {
        Group::from_name(name)
            .ok()
            .flatten()
            .map(|group| group.gid.as_raw())
    }
}

/// The new owner and group of all entries. Each is a map that applies to all users or to all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewOwner {
    pub(crate) users: Option<AccountMap>,
    pub(crate) groups: Option<AccountMap>,
}

/// Mappings from users or groups of the source to accounts of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccountMap(pub(crate) Vec<Mapping>);

impl FromStr for NewOwner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (user, group) = text.split_once(':').unwrap_or((text, ""));
        let parse = |word: &str| {
            if word.is_empty() {
                Ok(None)
            } else {
                let from = AccountMatch::All;
                account(word).map(|to| Some(AccountMap(vec![Mapping { from, to }])))
            }
        };
        match (parse(user)?, parse(group)?) {
            (None, None) => Err("write USER, USER:GROUP or :GROUP".to_owned()),
            (users, groups) => Ok(Self { users, groups }),
        }
    }
}

impl FromStr for AccountMap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',')
            .map(mapping)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

fn mapping(text: &str) -> Result<Mapping, String> {
    let (from, to) = text.split_once(':').ok_or_else(|| {
        format!("'{text}' is not FROM:TO: write for example alice:bob or 1000:2000")
    })?;
    let number = |word: &str| word.parse::<u32>().ok();
    let range = from
        .split_once('-')
        .and_then(|(first, last)| Some((number(first)?, number(last)?)));
    let from = match (from, number(from), range) {
        ("*", ..) => AccountMatch::All,
        ("", ..) => AccountMatch::Nameless,
        (_, Some(id), _) => AccountMatch::Ids(id, id),
        (_, _, Some((first, last))) if first <= last => AccountMatch::Ids(first, last),
        _ => AccountMatch::Name(from.to_owned()),
    };
    Ok(Mapping {
        from,
        to: account(to)?,
    })
}

/// Parses a user or a group of the target, given as a number or as a name.
fn account(word: &str) -> Result<Account, String> {
    if let Ok(id) = word.parse() {
        return Ok(Account {
            id,
            name: "".into(),
        });
    }
    if word.is_empty() || word.len() > Account::NAME_BYTES_MAX || word.contains(['\0', ':', ',']) {
        return Err(format!("'{word}' is not a valid user or group name"));
    }
    Ok(Account {
        id: Account::NO_ID,
        name: word.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(id: u32) -> Account {
        Account {
            id,
            name: "".into(),
        }
    }

    fn named(name: &str) -> Account {
        Account {
            id: Account::NO_ID,
            name: name.into(),
        }
    }

    #[test]
    fn owners_are_read_by_name_and_number() {
        let owner = |text: &str| {
            text.parse::<NewOwner>()
                .map(|owner| [owner.users, owner.groups])
        };
        let all = |to| {
            let from = AccountMatch::All;
            Some(AccountMap(vec![Mapping { from, to }]))
        };
        assert_eq!(owner("ann"), Ok([all(named("ann")), None]));
        assert_eq!(owner("7:staff"), Ok([all(number(7)), all(named("staff"))]));
        assert_eq!(owner(":8"), Ok([None, all(number(8))]));
        assert!(
            ["", ":", "a:b:c", "a,b"]
                .into_iter()
                .all(|text| owner(text).is_err())
        );
    }

    #[test]
    fn maps_are_read_in_their_order() {
        let map = |text: &str| text.parse::<AccountMap>().map(|map| map.0);
        let to = |from, to| Mapping { from, to };
        let read = map("ann:bob,1000-1999:5,7:root,:nobody,*:99").unwrap();
        let expected = [
            to(AccountMatch::Name("ann".into()), named("bob")),
            to(AccountMatch::Ids(1000, 1999), number(5)),
            to(AccountMatch::Ids(7, 7), named("root")),
            to(AccountMatch::Nameless, named("nobody")),
            to(AccountMatch::All, number(99)),
        ];
        assert_eq!(read, expected);
        assert_eq!(
            map("9-7:1").unwrap()[0].from,
            AccountMatch::Name("9-7".into())
        );
        assert!(
            ["", "a", "a:", "a:b,"]
                .into_iter()
                .all(|text| map(text).is_err())
        );
    }

    #[test]
    fn root_is_known() {
        assert_eq!(
            (
                SystemAccounts.user_name(0).as_deref(),
                SystemAccounts.user_id("root")
            ),
            (Some("root"), Some(0))
        );
        assert_eq!(SystemAccounts.group_id("no such group"), None);
    }
}
