//! Replies of the kernel over netlink.

use crate::nbd_netlink::{Answer, find, number, read_answer};

/// Parses one datagram, or two: the first byte is the length of the first one.
pub fn netlink_answer(data: &[u8]) {
    let Some((cut, bytes)) = data.split_first() else { return };
    let (first, second) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    let mut answer = Answer::default();
    for datagram in [first, second] {
        if read_answer(datagram, &mut answer).is_err() {
            return;
        }
    }
    let Some(attributes) = answer.attributes else { return };
    assert!(attributes.len() <= bytes.len(), "{} bytes of attributes in {}", attributes.len(), bytes.len());
    for kind in 0..16 {
        let found = find(&attributes, kind);
        assert!(found.is_none_or(|value| value.len() + 4 <= attributes.len()));
        assert_eq!(number(&attributes, kind).is_some(), found.is_some_and(|value| value.len() == 4));
        // Nested attributes.
        let _ = found.map(|inner| find(inner, kind));
    }
}
