//! Connections and processes that end in mid-transfer, stall, or return.

pub(crate) mod breakage;
pub(crate) mod clock;
pub(crate) mod one_writer;
pub(crate) mod outages;
pub(crate) mod peers;
pub(crate) mod pings;
pub(crate) mod reconnect;
pub(crate) mod resume;
pub(crate) mod unread;
