//! Rows of cells under headings, in columns as wide as they need.

use std::fmt;

/// A table for people.
pub(crate) struct Table {
    lines: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self { lines: vec![headings.iter().map(|heading| (*heading).to_owned()).collect()] }
    }

    /// Adds a row; cells that are missing at its end are shown as `-`.
    pub(crate) fn row(&mut self, mut cells: Vec<String>) {
        cells.resize(self.lines[0].len(), "-".to_owned());
        self.lines.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| self.lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.lines[0].len()).map(width).collect();
        for line in &self.lines {
            let cells: Vec<String> = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(f, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["A", "LONG", "C"]);
        table.row(vec!["wide".to_owned(), "x".to_owned(), "y".to_owned()]);
        table.row(vec!["z".to_owned()]);
        assert_eq!(table.to_string(), "A     LONG  C\nwide  x     y\nz     -     -\n");
    }
}
