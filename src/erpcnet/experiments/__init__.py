"""The paper's tables and figures. Nothing else imports this."""
