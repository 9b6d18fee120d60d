"""The store on PostgreSQL: one statement per file in `sql/`, numbered migrations, the door through which both go."""
