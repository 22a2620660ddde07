//! The names of one batch of directory entries, stored in one buffer.
//!
//! The job that lists a directory fills the list, and another job looks up each name. **Invariant:** the buffer is a
//! sequence of NUL-terminated names.

use std::ffi::CStr;

/// Names in the order in which the directory listing returned them.
#[derive(Debug, Default)]
pub(crate) struct NameList {
    bytes: Vec<u8>,
    count: usize,
}

impl NameList {
    /// Appends a name.
    pub(crate) fn push(&mut self, name: &CStr) {
        self.bytes.extend_from_slice(name.to_bytes_with_nul());
        self.count += 1;
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &CStr> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let name = CStr::from_bytes_until_nul(rest).ok()?;
            rest = &rest[name.count_bytes() + 1..];
            Some(name)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_in_order() {
        let mut names = NameList::default();
        [c"b", c"...", c"caf\xe9"]
            .into_iter()
            .for_each(|name| names.push(name));
        assert_eq!(names.len(), 3);
        assert_eq!(names.iter().collect::<Vec<_>>(), [c"b", c"...", c"caf\xe9"]);
        names.clear();
        assert_eq!(names.iter().count(), 0);
    }
}
