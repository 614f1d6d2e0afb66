//! Tables of dm-crypt.

use inlock_volume::table::{ShowKeys, Table};

/// Any bytes as a table: it is read or refused, an error names no more than the words of its line, and what was read is
/// printed so that it reads back the same.
pub fn table(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        check_table(Table::parse(text));
    }
}

/// What reading gave keeps the promises.
pub(crate) fn check_table<E: std::fmt::Display>(read: Result<Table, E>) {
    match read {
        Err(error) => assert!(error.to_string().len() < 1000, "an error of bounded length"),
        Ok(table) => {
            let printed = table.to_text(ShowKeys::Yes);
            let again = Table::parse(&printed).unwrap_or_else(|e| panic!("what was printed is refused: {e}"));
            assert_eq!(*again.to_text(ShowKeys::Yes), *printed, "printed twice, the same");
            assert_eq!(again.sectors(), table.sectors());
            assert_eq!(table.to_text(ShowKeys::No).len(), printed.len(), "a hidden key is as long as the key");
        }
    }
}
