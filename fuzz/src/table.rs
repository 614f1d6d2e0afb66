//! Tables of device-mapper: lines of one device, and stacks with integrity protection or a hash tree.

use inlock_volume::table::{AnyTable, ShowKeys, Table};

/// Parses any bytes as a table. An error quotes at most one word of its line, and a parsed table, when printed, parses
/// to the same table.
pub fn table(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        check_table(Table::parse(text));
        check_stack(AnyTable::parse(text));
    }
}

/// Checks the guarantees for the result of parsing.
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

/// Checks the guarantees for a table of any form.
fn check_stack<E: std::fmt::Display>(read: Result<AnyTable, E>) {
    match read {
        Err(error) => assert!(error.to_string().len() < 1000, "an error of bounded length"),
        Ok(table) => {
            let printed = table.to_text(ShowKeys::Yes);
            let again = AnyTable::parse(&printed).unwrap_or_else(|e| panic!("what was printed is refused: {e}"));
            assert_eq!(*again.to_text(ShowKeys::Yes), *printed, "printed twice, the same");
            assert_eq!((again.devices(), again.has_key()), (table.devices(), table.has_key()));
            assert_eq!(table.to_text(ShowKeys::No).len(), printed.len(), "a hidden key is as long as the key");
        }
    }
}
